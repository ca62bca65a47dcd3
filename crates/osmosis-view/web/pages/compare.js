// Runs compared, row by row: the verdict in words, and what changed.

import { here, link, part, rolloutPath, runPath } from '../address.js';
import { data } from '../api.js';
import { fill, h, s } from '../dom.js';
import { count, interval, number, percent, plural, signed, words } from '../format.js';
import { moveFocus } from '../keys.js';
import { card, command, stateDot, withTip } from '../parts/bits.js';
import { sideBySide } from '../parts/side_by_side.js';

/** @param {string[]} names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function comparePage([list], signal) {
  const runs = list.split(',');
  const comparison = await data('compare', { runs: list }, signal);
  const { first, others, definitions } = comparison;
  const chosen = here().query.get('row');
  const transcripts = h('div');
  const against = Math.max(0, runs.indexOf(here().query.get('with') ?? '') - 1);
  const to = (/** @type {any} */ changed, /** @type {number} */ place) =>
    link(`/compare/${part(list)}`, {
      row: `${changed.row_index_in_first}-${changed.row_index}`,
      with: runs[place + 1],
    });

  /** @param {any} other @param {number} place */
  const one = (other, place) =>
    h(
      'div',
      { class: 'stack' },
      card(`${first.run_name} → ${other.run_name}`, [
        h('p', { class: 'verdict' }, other.summary.replaceAll('`', '')),
        other.cautions.length
          ? h(
              'ul',
              { class: 'notice warn-box cautions' },
              other.cautions.map((/** @type {string} */ text) => h('li', null, text)),
            )
          : null,
        h(
          'div',
          { class: 'table-wrap', tabindex: '0', role: 'region', 'aria-label': 'Differences' },
          h(
            'table',
            null,
            h(
              'thead',
              null,
              h(
                'tr',
                null,
                ['', first.run_name, other.run_name, 'Difference', '95% interval', 'p'].map((text, i) =>
                  h(
                    'th',
                    { scope: 'col', class: i ? 'right' : null },
                    text || h('span', { class: 'sr-only' }, 'Measure'),
                  ),
                ),
              ),
            ),
            h(
              'tbody',
              null,
              [
                ['pass rate', other.pass_rate, percent, definitions.pass_rate],
                ['reward', other.reward, number, definitions.reward],
                ['failures', other.failures, percent, definitions.failures],
              ]
                .filter(([, endpoint]) => endpoint)
                .map(([name, endpoint, show, says]) => endpointRow(other, name, endpoint, show, says)),
            ),
          ),
        ),
        h(
          'p',
          { class: 'small muted' },
          `${plural(other.rows.compared, 'row')} compared, found by ${other.rows.found_by}`,
          other.rows.only_in_first ? ` · ${plural(other.rows.only_in_first, 'row')} only in ${first.run_name}` : '',
          other.rows.only_in_this ? ` · ${plural(other.rows.only_in_this, 'row')} only in ${other.run_name}` : '',
        ),
      ]),
      h(
        'div',
        { class: 'grid-2' },
        changedRows('Fixed rows', other.fixed, place, 'pass more often'),
        changedRows('Broken rows', other.broken, place, 'pass less often'),
        changedRows('Higher reward', other.reward_up, place, 'same passes, higher reward'),
        changedRows('Lower reward', other.reward_down, place, 'same passes, lower reward'),
      ),
      card('Paired differences', [pairs(other)], h('span', { class: 'small muted' }, 'rows that changed, by how much')),
      h(
        'div',
        { class: 'grid-2' },
        outcomesBeside(first, other),
        other.differences.length
          ? card('What differs in the setup', [
              h(
                'dl',
                { class: 'kv' },
                other.differences.flatMap((/** @type {any} */ difference) => [
                  h('dt', null, difference.fact),
                  h('dd', null, `${show(difference.first)} → ${show(difference.second)}`),
                ]),
              ),
            ])
          : card('What differs in the setup', [h('p', { class: 'muted' }, 'Nothing that the runs record.')]),
      ),
    );

  /** @param {unknown} value */
  const show = (value) =>
    value === null || value === undefined ? 'none' : typeof value === 'string' ? value : JSON.stringify(value);

  /** @param {any} other @param {string} name @param {any} endpoint @param {(value: number) => string} as @param {string} says */
  function endpointRow(other, name, endpoint, as, says) {
    const pair = endpoint;
    const low = pair.ci95;
    const p = endpoint.p_adjusted ?? endpoint.p;
    return h(
      'tr',
      null,
      withTip(h('th', { scope: 'row' }, name), () => says),
      h('td', { class: 'right' }, as(pair.first)),
      h('td', { class: 'right' }, as(pair.second)),
      h(
        'td',
        {
          // A colour says that there is a difference: not where chance or lost rollouts explain it.
          class: `right ${!((p ?? 1) <= 0.05) || other.finding === 'lost_rollouts' ? '' : pair.difference > 0 === (name !== 'failures') ? 'good' : 'bad'}`,
        },
        name === 'reward' ? signed(pair.difference) : `${signed(100 * pair.difference, 1)} points`,
      ),
      h('td', { class: 'right' }, interval(low, as === percent ? (x) => `${signed(100 * x, 1)}` : (x) => signed(x))),
      h('td', { class: 'right' }, p === null || p === undefined ? '–' : p < 0.001 ? '< 0.001' : number(p)),
    );
  }

  /** @param {string} title @param {any} changed @param {number} place @param {string} what */
  function changedRows(title, changed, place, what) {
    return card(
      `${title} (${changed.count})`,
      [
        changed.items.length
          ? h(
              'ul',
              { class: 'tree' },
              changed.items
                .slice(0, 30)
                .map((/** @type {any} */ item) =>
                  h(
                    'li',
                    null,
                    h('a', { class: 'row-link', href: to(item, place) }, `row ${item.row_index}`),
                    h('span', { class: 'small muted num' }, ` ${side(item.first)} → ${side(item.second)}`),
                  ),
                ),
            )
          : h('p', { class: 'muted' }, 'None.'),
        changed.rows && changed.count > 0 ? command(`--rows ${changed.rows}`, 'All of them, for a new run') : null,
      ],
      h('span', { class: 'small muted' }, what),
    );
  }

  /** @param {any} of */
  const side = (of) => `${of.passed}/${of.ran}${of.reward === null ? '' : ` (${number(of.reward)})`}`;

  /** A mark for each row that changed. @param {any} other */
  function pairs(other) {
    const items = [...other.fixed.items, ...other.broken.items, ...other.reward_up.items, ...other.reward_down.items];
    if (!items.length) return h('p', { class: 'muted' }, 'No row changed.');
    const change = (/** @type {any} */ item) =>
      (item.second.reward ?? item.second.passed / Math.max(1, item.second.ran)) -
      (item.first.reward ?? item.first.passed / Math.max(1, item.first.ran));
    const sorted = items.map((item) => ({ item, by: change(item) })).sort((a, b) => b.by - a.by);
    const most = Math.max(...sorted.map(({ by }) => Math.abs(by)), 1e-9);
    const width = 900;
    const each = Math.min(26, width / sorted.length);
    return h(
      'div',
      { class: 'chart' },
      s(
        'svg',
        { viewBox: `0 0 ${width} 150`, role: 'img', 'aria-label': `${sorted.length} rows changed` },
        s('line', { class: 'axis', x1: 0, x2: width, y1: 75, y2: 75 }),
        sorted.map(({ item, by }, i) =>
          withTip(
            s('rect', {
              x: i * each,
              width: Math.max(1, each - 2),
              y: by > 0 ? 75 - (70 * by) / most : 75,
              height: Math.max(1, (70 * Math.abs(by)) / most),
              fill: by > 0 ? 'var(--good)' : 'var(--bad)',
              rx: 2,
            }),
            () => `row ${item.row_index}: ${signed(by)}`,
          ),
        ),
      ),
    );
  }

  /** @param {any} one_ @param {any} other */
  function outcomesBeside(one_, other) {
    const kinds = Object.keys(one_.outcomes).filter((kind) => one_.outcomes[kind] || other.outcomes[kind]);
    return card('Outcomes side by side', [
      h(
        'div',
        { class: 'table-wrap', tabindex: '0', role: 'region', 'aria-label': 'Table of outcomes' },
        h(
          'table',
          null,
          h(
            'thead',
            null,
            h(
              'tr',
              null,
              h('th', { scope: 'col' }, 'Outcome'),
              h('th', { scope: 'col', class: 'right' }, one_.run_name),
              h('th', { scope: 'col', class: 'right' }, other.run_name),
            ),
          ),
          h(
            'tbody',
            null,
            kinds.map((kind) =>
              h(
                'tr',
                null,
                h('th', { scope: 'row' }, stateDot(kind), ' ', words(kind)),
                h('td', { class: 'right' }, count(one_.outcomes[kind])),
                h('td', { class: 'right' }, count(other.outcomes[kind])),
              ),
            ),
          ),
        ),
      ),
    ]);
  }

  async function load() {
    if (!chosen) return;
    const rows = chosen.split('-').map(Number);
    const pair = [runs[0], runs[against + 1]];
    fill(transcripts, h('p', { class: 'loading', role: 'status' }, 'Loading the transcripts…'));
    const columns = await Promise.all(
      pair.map(async (run, i) => {
        const group = await data(`runs/${part(run)}/rows/${rows[i]}`, undefined, signal);
        const all = group.visits.flatMap((/** @type {any} */ visit) => visit.rollouts);
        // The attempts that differ are the interesting ones: the worst of one side beside the best of the other.
        const first_ = all[0];
        const transcript = await data(
          `runs/${part(run)}/rollouts/${first_.row_index}.${first_.run_index}/transcript`,
          undefined,
          signal,
        );
        return {
          title: `${run} ${first_.row_index}.${first_.run_index}`,
          href: link(rolloutPath(run, first_.row_index, first_.run_index)),
          below: first_.reward === null ? words(first_.outcome ?? 'waiting') : `reward ${number(first_.reward)}`,
          samples: transcript.samples,
        };
      }),
    );
    fill(transcripts, card(`Row ${rows[1]}, side by side`, [sideBySide(columns)]));
    transcripts.scrollIntoView({ block: 'start' });
  }

  return {
    title: `Compare ${runs.join(', ')}`,
    crumbs: [{ text: 'Runs', href: link('/') }, { text: `Compare ${runs.length} runs` }],
    content: h(
      'div',
      { class: 'stack' },
      h(
        'div',
        { class: 'page-head' },
        h(
          'div',
          { class: 'titles' },
          h('h1', null, 'Comparison'),
          h(
            'div',
            { class: 'facts' },
            runs.map((run) => h('a', { href: link(runPath(run)) }, run)),
          ),
        ),
        h('div', { class: 'actions' }, command(`osmosis eval compare ${runs.join(' ')}`)),
      ),
      others.map(one),
      transcripts,
      others.length > 1 ? h('p', { class: 'small muted' }, definitions.p_adjusted) : null,
    ),
    entered: () => {
      load().catch((error) => {
        if (!signal.aborted) fill(transcripts, h('p', { class: 'error-box' }, error.message));
      });
    },
    keys: [
      {
        keys: ['j', 'ArrowDown'],
        does: 'next changed row',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', 1);
        },
      },
      {
        keys: ['k', 'ArrowUp'],
        does: 'previous changed row',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', -1);
        },
      },
    ],
  };
}
