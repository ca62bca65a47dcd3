// All rollouts of one dataset row, side by side.

import { here, link, note, part, rolloutPath, runPath } from '../address.js';
import { data } from '../api.js';
import { fill, h } from '../dom.js';
import { count, number, plural, signed, words } from '../format.js';
import { moveFocus } from '../keys.js';
import { card, outcome } from '../parts/bits.js';
import { fold, longText, visible } from '../parts/text.js';
import { sideBySide } from '../parts/side_by_side.js';

const USES = {
  trained: 'trained on',
  no_variance: 'not trained on: all rewards are equal',
  incomplete: 'not trained on: rewards are missing',
  held_out: 'held out, never trained on',
  hypothetical: 'no training: advantages are what GRPO would give',
};

/** Rollouts that are shown at once, at first. */
const SHOWN = 8;

/** @param {string[]} names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function groupPage([run, row], signal) {
  const group = await data(`runs/${part(run)}/rows/${part(row)}`, undefined, signal);
  const wanted = Number(here().query.get('visit') ?? 0);
  const visit = group.visits.find((/** @type {any} */ one) => one.visit === wanted) ?? group.visits[0];
  const columns = h('div');
  const head = h(
    'div',
    { class: 'page-head' },
    h(
      'div',
      { class: 'titles' },
      h('h1', null, `Row ${row}`),
      h(
        'div',
        { class: 'facts' },
        h('span', null, plural(visit?.rollouts.length ?? 0, 'rollout')),
        visit ? h('span', null, USES[/** @type {keyof typeof USES} */ (visit.use)]) : null,
        visit?.common_prefix !== null && visit
          ? h('span', null, `alike for the first ${plural(visit.common_prefix, 'token')}`)
          : null,
        h('span', null, `line ${group.line} of the dataset`),
      ),
    ),
    group.visits.length > 1
      ? h(
          'select',
          {
            'aria-label': 'Visit',
            onchange: (/** @type {Event} */ event) => {
              note({ visit: /** @type {HTMLSelectElement} */ (event.target).value });
              location.reload();
            },
          },
          group.visits.map((/** @type {any} */ one) =>
            h(
              'option',
              { value: one.visit, selected: one === visit },
              `visit ${one.visit + 1}, ${plural(one.rollouts.length, 'rollout')}`,
            ),
          ),
        )
      : null,
  );
  const rewards = visit
    ? h(
        'div',
        { class: 'table-wrap', tabindex: '0', role: 'region', 'aria-label': 'Attempts' },
        h(
          'table',
          null,
          h(
            'thead',
            null,
            h(
              'tr',
              null,
              ['Rollout', 'Outcome', 'Reward', 'Advantage', 'Calls', 'Tokens', 'Why without an advantage'].map(
                (text, i) => h('th', { scope: 'col', class: i > 1 && i < 6 ? 'right' : null }, text),
              ),
            ),
          ),
          h(
            'tbody',
            null,
            visit.rollouts.map((/** @type {any} */ rollout) => {
              const advantages = Object.values(rollout.advantages).flat();
              return h(
                'tr',
                { class: 'link' },
                h(
                  'td',
                  null,
                  h(
                    'a',
                    { class: 'row-link', href: link(rolloutPath(run, rollout.row_index, rollout.run_index)) },
                    `${rollout.row_index}.${rollout.run_index}`,
                  ),
                  rollout.greedy ? h('span', { class: 'tag' }, 'greedy') : null,
                ),
                h('td', null, outcome(rollout.outcome ?? 'waiting', rollout.passed)),
                h('td', { class: 'right' }, number(rollout.reward)),
                h(
                  'td',
                  { class: `right ${Number(advantages[0]) > 0 ? 'good' : Number(advantages[0]) < 0 ? 'bad' : ''}` },
                  advantages.length ? advantages.map((a) => signed(Number(a))).join(', ') : '–',
                ),
                h('td', { class: 'right' }, count(rollout.model_calls)),
                h('td', { class: 'right' }, count(rollout.completion_tokens)),
                h(
                  'td',
                  { class: 'small muted' },
                  rollout.without_advantage ?? (rollout.error ? visible(rollout.error.slice(0, 160)) : ''),
                ),
              );
            }),
          ),
        ),
      )
    : h('p', { class: 'empty' }, 'No rollout of this row yet.');

  async function load() {
    if (!visit) return;
    const chosen = visit.rollouts.slice(0, SHOWN);
    fill(columns, h('p', { class: 'loading', role: 'status' }, 'Loading the transcripts…'));
    const transcripts = await Promise.all(
      chosen.map((/** @type {any} */ one) =>
        data(`runs/${part(run)}/rollouts/${one.row_index}.${one.run_index}/transcript`, undefined, signal),
      ),
    );
    fill(
      columns,
      sideBySide(
        chosen.map((/** @type {any} */ one, /** @type {number} */ i) => ({
          title: `${one.row_index}.${one.run_index}`,
          href: link(rolloutPath(run, one.row_index, one.run_index)),
          below: [
            one.reward === null ? words(one.outcome ?? 'waiting') : `reward ${number(one.reward)}`,
            ...Object.values(one.advantages)
              .flat()
              .slice(0, 1)
              .map((a) => `advantage ${signed(Number(a))}`),
          ].join(' · '),
          samples: transcripts[i].samples,
        })),
      ),
      visit.rollouts.length > SHOWN
        ? h(
            'p',
            { class: 'small muted' },
            `The first ${SHOWN} of ${visit.rollouts.length} rollouts; the table opens the others.`,
          )
        : null,
    );
  }

  return {
    title: `Row ${row} of ${run}`,
    crumbs: [{ text: 'Runs', href: link('/') }, { text: run, href: link(runPath(run)) }, { text: `Row ${row}` }],
    content: h(
      'div',
      { class: 'stack' },
      head,
      h(
        'div',
        { class: 'grid-2' },
        card('Dataset row', [
          fold(['The whole row'], () => longText(JSON.stringify(group.row, null, 2), 'code')),
          prompt(group.row),
        ]),
        card('Ground truth', [
          group.label === null ? h('p', { class: 'muted' }, 'The row has no label.') : longText(group.label, 'code'),
        ]),
      ),
      rewards,
      columns,
    ),
    entered: () => {
      load().catch((error) => {
        if (!signal.aborted) fill(columns, h('p', { class: 'error-box' }, error.message));
      });
    },
    keys: [
      {
        keys: ['j', 'ArrowDown'],
        does: 'next rollout',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', 1);
        },
      },
      {
        keys: ['k', 'ArrowUp'],
        does: 'previous rollout',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', -1);
        },
      },
      {
        keys: ['u'],
        does: 'back to the run',
        run: () => {
          location.href = link(runPath(run));
        },
      },
    ],
  };
}

/** @param {any} row */
function prompt(row) {
  const text = [row.user_prompt, row.prompt, row.question].find((value) => typeof value === 'string');
  return text ? longText(text) : h('span');
}
