// The rollouts of a run as a table, and the texts of their rows.

import { here, isExport, link, note, rolloutPath } from '../address.js';
import { list } from '../api.js';
import { h } from '../dom.js';
import { count, duration, number } from '../format.js';
import { outcome } from './bits.js';

/** @typedef {import('../types').RolloutGrid} RolloutGrid */

const LISTED = 200;

/**
 * The same rollouts as a table, some at a time.
 * @param {string} run
 * @param {RolloutGrid} grid
 * @param {number[]} places
 * @param {() => void} draw
 */
export function rolloutTable(run, grid, places, draw) {
  const from = Number(here().query.get('from') ?? 0);
  const shown = places.slice(from, from + LISTED);
  const turn = (/** @type {number} */ to) => {
    note({ from: to ? String(to) : '' });
    draw();
  };
  return h(
    'div',
    { class: 'stack' },
    h(
      'div',
      { class: 'table-wrap', tabindex: '0', role: 'region', 'aria-label': 'Table of rollouts' },
      h(
        'table',
        null,
        h(
          'thead',
          null,
          h(
            'tr',
            null,
            ['Rollout', 'Outcome', 'Reward', 'Time', 'Calls', 'Tokens'].map((text, i) =>
              h('th', { scope: 'col', class: i > 1 ? 'right' : null }, text),
            ),
          ),
        ),
        h(
          'tbody',
          null,
          shown.map((place) =>
            h(
              'tr',
              { class: 'link' },
              h(
                'td',
                null,
                h(
                  'a',
                  { class: 'row-link', href: link(rolloutPath(run, grid.row_index[place], grid.run_index[place])) },
                  `${grid.row_index[place]}.${grid.run_index[place]}`,
                ),
              ),
              h(
                'td',
                null,
                outcome(
                  grid.states[grid.state[place]],
                  grid.reward[place] === null ? null : Boolean(grid.passed[place]),
                ),
              ),
              h('td', { class: 'right' }, number(grid.reward[place])),
              h('td', { class: 'right' }, duration(grid.duration_ms[place] || null)),
              h('td', { class: 'right' }, count(grid.model_calls[place])),
              h('td', { class: 'right' }, count(grid.completion_tokens[place])),
            ),
          ),
        ),
      ),
    ),
    places.length > LISTED
      ? h(
          'div',
          { class: 'actions' },
          h(
            'button',
            { class: 'btn', type: 'button', disabled: from === 0, onclick: () => turn(Math.max(0, from - LISTED)) },
            'Previous',
          ),
          h(
            'span',
            { class: 'small muted num' },
            `${count(from + 1)} – ${count(Math.min(places.length, from + LISTED))} of ${count(places.length)}`,
          ),
          h(
            'button',
            {
              class: 'btn',
              type: 'button',
              disabled: from + LISTED >= places.length,
              onclick: () => turn(from + LISTED),
            },
            'Next',
          ),
        )
      : null,
  );
}

/** @type {Map<string, Promise<{ row_index: number, text: string }[]>>} */
const exportedRows = new Map();

/** @param {string} at @param {number[]} rows @returns {Promise<{ row_index: number, text: string }[]>} */
export async function rowTexts(at, rows) {
  if (!isExport()) return (await list(`${at}/rows`, { indices: rows.join(',') })).items;
  /** @type {Promise<{ row_index: number, text: string }[]>} */
  const known = exportedRows.get(at) ?? list(`${at}/rows`).then((all) => all.items);
  exportedRows.set(at, known);
  const wanted = new Set(rows);
  return (await known).filter((item) => wanted.has(item.row_index));
}
