// One step of a training: the groups it learnt from.

import { link, part, rolloutPath, runPath } from '../address.js';
import { data, list } from '../api.js';
import { h } from '../dom.js';
import { number, words } from '../format.js';
import { moveFocus } from '../keys.js';
import { card, headline, stateDot } from '../parts/bits.js';
import { rewardColor } from '../parts/rollout_grid.js';

/** @param {string[]} names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function stepPage([run, step], signal) {
  const at = `runs/${part(run)}`;
  const [found, steps] = await Promise.all([
    data(`${at}/steps/${part(step)}`, undefined, signal),
    list(`${at}/steps`, undefined, signal),
  ]);
  const own = steps.items.find((/** @type {any} */ item) => String(item.step) === step);
  const numbers = steps.items.map((/** @type {any} */ item) => item.step);
  const [before, after] = [Number(step) - 1, Number(step) + 1].map((n) => (numbers.includes(n) && n > 0 ? n : null));
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  /** @param {any} group */
  const line = (group) => {
    const rewards = group.rollouts
      .map((/** @type {any} */ rollout) => rollout.reward)
      .filter((/** @type {any} */ reward) => reward !== null);
    const mean = rewards.length
      ? rewards.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / rewards.length
      : null;
    const flat = rewards.length > 1 && rewards.every((/** @type {number} */ reward) => reward === rewards[0]);
    return h(
      'tr',
      { class: 'link' },
      h(
        'td',
        null,
        h('a', { class: 'row-link', href: link(`${runPath(run)}/rows/${group.row_index}`) }, `row ${group.row_index}`),
      ),
      h(
        'td',
        null,
        h(
          'div',
          { class: 'chips' },
          group.rollouts.map((/** @type {any} */ rollout) =>
            h(
              'a',
              {
                class: 'chip',
                href: link(rolloutPath(run, rollout.row_index, rollout.run_index)),
                'aria-label': `rollout ${rollout.row_index}.${rollout.run_index}: ${rollout.outcome ? words(rollout.outcome) : 'no result'}${rollout.reward === null ? '' : `, reward ${number(rollout.reward)}`}`,
              },
              rollout.reward === null
                ? stateDot(rollout.outcome ?? 'waiting')
                : h('span', { class: 'dot', style: { background: rewardColor(rollout.reward, dark) } }),
              rollout.reward === null ? words(rollout.outcome ?? 'waiting') : number(rollout.reward),
            ),
          ),
        ),
      ),
      h('td', { class: 'right' }, number(mean)),
      h(
        'td',
        null,
        flat
          ? h('span', { class: 'muted' }, 'flat: nothing to learn')
          : rewards.length < group.rollouts.length
            ? h('span', { class: 'warn' }, 'incomplete')
            : 'used',
      ),
    );
  };
  const shown = [
    ['reward/mean', 'mean reward'],
    ['pass_rate', 'pass rate'],
    ['entropy', 'entropy'],
    ['kl', 'KL'],
    ['clip_fraction', 'clip share'],
    ['tokens/trained', 'tokens trained'],
    ['groups/used', 'groups used'],
    ['time/step', 'seconds'],
  ];
  return {
    title: `Step ${step}`,
    crumbs: [{ text: 'Runs', href: link('/') }, { text: run, href: link(runPath(run)) }, { text: `Step ${step}` }],
    keys: [
      {
        keys: ['j', 'ArrowDown'],
        does: 'next group',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', 1);
        },
      },
      {
        keys: ['k', 'ArrowUp'],
        does: 'previous group',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', -1);
        },
      },
    ],
    content: h(
      'div',
      { class: 'stack' },
      h(
        'div',
        { class: 'page-head' },
        h(
          'div',
          { class: 'titles' },
          h('h1', null, `Step ${step}`),
          own?.metrics.skipped
            ? h('p', { class: 'warn' }, `No update: ${own.metrics.skipped}.`)
            : h('p', { class: 'muted' }, own ? `made version ${own.version} of the weights` : 'not done yet'),
        ),
        h(
          'div',
          { class: 'actions' },
          before ? h('a', { class: 'btn', href: link(`${runPath(run)}/steps/${before}`) }, '← Previous') : null,
          after ? h('a', { class: 'btn', href: link(`${runPath(run)}/steps/${after}`) }, 'Next →') : null,
        ),
      ),
      own
        ? h(
            'dl',
            { class: 'numbers' },
            shown
              .filter(([key]) => own.metrics[key] !== null && own.metrics[key] !== undefined)
              .map(([key, name]) => headline(name, number(own.metrics[key]), null, null)),
          )
        : null,
      found.groups === null
        ? h('p', { class: 'empty' }, 'This run does not record which rollouts the step learnt from.')
        : card(`Groups (${found.groups.length})`, [
            h(
              'div',
              { class: 'table-wrap', tabindex: '0', role: 'region', 'aria-label': 'Groups' },
              h(
                'table',
                null,
                h(
                  'thead',
                  null,
                  h(
                    'tr',
                    null,
                    ['Row', 'Attempts', 'Mean reward', 'Use'].map((text, i) =>
                      h('th', { scope: 'col', class: i === 2 ? 'right' : null }, text),
                    ),
                  ),
                ),
                h('tbody', null, found.groups.map(line)),
              ),
            ),
          ]),
    ),
  };
}
