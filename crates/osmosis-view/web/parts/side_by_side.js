// Transcripts in columns; what differs from the first is marked.

import { fill, h } from '../dom.js';
import { plural } from '../format.js';
import { segmented } from './bits.js';
import { difference } from './diff.js';
import { textOf, toolNames, turnElement } from './transcript.js';

/** @typedef {{ title: string, href: string, below: string, samples: import('../types').SampleTranscript[] }} Column */

/** @param {Column[]} columns */
export function sideBySide(columns) {
  let base = 0;
  let marked = true;
  const area = h('div', { class: 'columns', tabindex: '0', role: 'region', 'aria-label': 'Transcripts side by side' });

  /** @param {Column} column */
  const turnsOf = ({ samples }) => {
    const sample = samples[0];
    return (sample?.paths[0]?.turns ?? []).map((at) => sample.turns[at]);
  };

  function draw() {
    const first = turnsOf(columns[base]);
    fill(
      area,
      columns.map((column, place) => {
        const turns = turnsOf(column);
        const names = toolNames(turns);
        let alike = true;
        let skipped = 0;
        /** @type {Node[]} */
        const shown = [];
        turns.forEach((turn, at) => {
          const other = first[at];
          const text = textOf(turn);
          const same = place !== base && other && other.role === turn.role && textOf(other) === text;
          if (marked && same && alike) {
            skipped += 1;
            return;
          }
          alike = false;
          const replace =
            marked && place !== base && !same && other?.role === turn.role ? difference(textOf(other), text) : null;
          const shownTurn = replace ? { ...turn, tool_calls: [], reasoning: null } : turn;
          const element = turnElement(shownTurn, at, { names, replace });
          element.removeAttribute('id');
          shown.push(element);
        });
        if (skipped)
          shown.unshift(
            h(
              'p',
              { class: 'notice' },
              skipped === turns.length
                ? 'Every turn is the same.'
                : `The first ${plural(skipped, 'turn')} are the same.`,
            ),
          );
        return h(
          'section',
          { 'aria-label': column.title },
          h(
            'div',
            { class: 'card-head' },
            h('h3', null, h('a', { href: column.href }, column.title)),
            h('span', { class: 'small muted' }, column.below),
          ),
          h('div', { class: 'turns' }, shown.length ? shown : h('p', { class: 'empty' }, 'Nothing was said.')),
        );
      }),
    );
  }
  draw();
  return h(
    'div',
    { class: 'stack' },
    h(
      'div',
      { class: 'actions' },
      segmented(
        'Differences',
        [
          ['yes', 'Mark differences'],
          ['no', 'Plain'],
        ],
        'yes',
        (value) => {
          marked = value === 'yes';
          draw();
        },
      ),
      columns.length > 1
        ? h(
            'label',
            { class: 'small muted' },
            'compared with ',
            h(
              'select',
              {
                onchange: (/** @type {Event} */ event) => {
                  base = Number(/** @type {HTMLSelectElement} */ (event.target).value);
                  draw();
                },
              },
              columns.map((column, i) => h('option', { value: i }, column.title)),
            ),
          )
        : null,
    ),
    area,
  );
}
