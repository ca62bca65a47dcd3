// Small things that many pages show.

import { announce, h, s, tip } from '../dom.js';
import { words } from '../format.js';

/** @typedef {import('../types').Interval} Interval */

/** @param {string} status */
export function statusBadge(status) {
  const live = status === 'running';
  return h('span', { class: `status ${status}` }, h('span', { class: live ? 'dot pulse' : 'dot' }), status);
}

/** The colour of an outcome. @param {string} state */
export function stateColor(state) {
  return `var(--s-${state})`;
}

/** @param {string} state */
export function stateDot(state) {
  return h('span', { class: 'dot', style: { background: stateColor(state) }, 'aria-hidden': 'true' });
}

/** @param {string} state @param {boolean | null} [passed] */
export function outcome(state, passed) {
  const text =
    state === 'scored' && passed !== undefined && passed !== null
      ? passed
        ? 'passed'
        : 'scored, did not pass'
      : words(state);
  return h('span', { class: 'status' }, stateDot(state), text);
}

/**
 * A button that copies.
 * @param {() => string | Promise<string>} text
 * @param {string} [label]
 */
export function copyButton(text, label = 'Copy') {
  const button = h(
    'button',
    {
      class: 'btn quiet',
      type: 'button',
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(await text());
          button.textContent = 'Copied';
          announce('Copied');
        } catch {
          button.textContent = 'Select and copy by hand';
        }
        setTimeout(() => {
          button.textContent = label;
        }, 1600);
      },
    },
    label,
  );
  return button;
}

/** @param {string} command @param {string} [title] */
export function command(command, title) {
  return h(
    'div',
    null,
    title ? h('div', { class: 'small muted' }, title) : null,
    h(
      'div',
      { class: 'command' },
      h('code', { tabindex: '0' }, command),
      copyButton(() => command),
    ),
  );
}

/** @param {number[]} values */
export function sparkline(values) {
  if (values.length < 2) return h('span', { class: 'muted' }, '');
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const at = (/** @type {number} */ value, /** @type {number} */ place) => [
    (place / (values.length - 1)) * 92,
    23 - ((value - low) / span) * 20,
  ];
  const path = values
    .map(
      (value, place) =>
        `${place ? 'L' : 'M'}${at(value, place)
          .map((n) => n.toFixed(1))
          .join(' ')}`,
    )
    .join('');
  const [x, y] = at(values[values.length - 1], values.length - 1);
  return s(
    'svg',
    {
      class: 'spark',
      viewBox: '0 0 92 26',
      role: 'img',
      'aria-label': `mean reward from ${values[0].toFixed(2)} to ${values[values.length - 1].toFixed(2)}`,
    },
    s('path', { d: path }),
    s('circle', { cx: x, cy: y, r: 2.4 }),
  );
}

/** A value with its interval as a mark on a line. @param {number | null} value @param {Interval} ci @param {number} low @param {number} high */
export function intervalBar(value, ci, low, high) {
  if (value === null || high <= low) return null;
  const at = (/** @type {number} */ x) => `${Math.max(0, Math.min(100, (100 * (x - low)) / (high - low)))}%`;
  return h(
    'div',
    { class: 'ci', 'aria-hidden': 'true' },
    ci ? h('i', { style: { left: at(ci[0]), right: `calc(100% - ${at(ci[1])})` } }) : null,
    h('b', { style: { left: at(value) } }),
  );
}

/**
 * One of the headline numbers; its definition opens on demand.
 * @param {string} name
 * @param {string} value
 * @param {string | null} [below]
 * @param {string | null} [definition]
 */
export function headline(name, value, below, definition) {
  const box = h('div', { class: 'number' });
  const dt = h('dt', null, name);
  if (definition) {
    /** @type {HTMLElement | null} */
    let shown = null;
    const button = h(
      'button',
      {
        class: 'icon-btn',
        type: 'button',
        'aria-expanded': 'false',
        'aria-label': `What is ${name}?`,
        onclick: () => {
          if (shown) shown.remove();
          shown = shown ? null : h('div', { class: 'definition', role: 'note' }, definition);
          if (shown) box.append(shown);
          button.setAttribute('aria-expanded', String(Boolean(shown)));
        },
      },
      h('span', { class: 'info-mark', 'aria-hidden': 'true' }, 'i'),
    );
    button.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && shown) button.click();
    });
    dt.append(button);
  }
  box.append(dt, h('dd', null, value, below ? h('small', null, below) : null));
  return box;
}

/** A part of the page with a title. @param {string} title @param {(Node | string | null)[]} content @param {Node | string | null} [aside] */
export function card(title, content, aside) {
  return h(
    'section',
    { class: 'card', 'aria-label': title },
    h('div', { class: 'card-head' }, h('h2', null, title), aside ?? null),
    content,
  );
}

/**
 * Buttons of which one is pressed.
 * @param {string} label
 * @param {[string, string][]} choices Value and text.
 * @param {string} chosen
 * @param {(value: string) => void} choose
 */
export function segmented(label, choices, chosen, choose) {
  const group = h('div', { class: 'segmented', role: 'group', 'aria-label': label });
  for (const [value, text] of choices) {
    const button = h(
      'button',
      {
        type: 'button',
        'aria-pressed': String(value === chosen),
        dataset: { value },
        onclick: () => {
          for (const other of group.children) other.setAttribute('aria-pressed', String(other === button));
          choose(value);
        },
      },
      text,
    );
    group.append(button);
  }
  return group;
}

/** Shows a text beside the pointer and to the keyboard. @template {Element} E @param {E} element @param {() => string} text @returns {E} */
export function withTip(element, text) {
  element.addEventListener('pointermove', (event) =>
    tip(text(), /** @type {PointerEvent} */ (event).clientX, /** @type {PointerEvent} */ (event).clientY),
  );
  element.addEventListener('pointerleave', () => tip(null));
  element.addEventListener('focus', () => {
    const box = element.getBoundingClientRect();
    tip(text(), box.left, box.bottom - 12);
  });
  element.addEventListener('blur', () => tip(null));
  return element;
}

/** @param {string} label @param {HTMLElement} input */
export function field(label, input) {
  return h('label', { class: 'field' }, h('span', null, label), input);
}
