// Recorded text, shown as text: long ones in pieces, characters that deceive the eye made visible.

import { append, h } from '../dom.js';
import { bytes } from '../format.js';
import { copyButton } from './bits.js';

/** Characters that turn the order of others round, or hide. */
const DECEIVING =
  /[\u202A-\u202E\u2066-\u2069\u200E\u200F\u061C\u200B\u2060\uFEFF\u0000-\u0008\u000B\u000C\u000E-\u001F\u007F-\u009F\u2028\u2029]/;
const EACH = new RegExp(DECEIVING.source, 'g');

/** Shown at first, and in each piece after that. */
const FIRST = 12_000;
const PIECE = 60_000;

/** The text with deceiving characters named. @param {string} text @returns {(string | Node)[]} */
export function visible(text) {
  if (!DECEIVING.test(text)) return [text];
  /** @type {(string | Node)[]} */
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(EACH)) {
    if (match.index > from) parts.push(text.slice(from, match.index));
    const code = match[0].codePointAt(0) ?? 0;
    parts.push(
      h(
        'span',
        { class: 'ctl', title: "a character that can't be seen" },
        `U+${code.toString(16).toUpperCase().padStart(4, '0')}`,
      ),
    );
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push(text.slice(from));
  return parts;
}

/** Not between the halves of a character. @param {string} text @param {number} at */
function cut(text, at) {
  const code = text.charCodeAt(at - 1);
  return code >= 0xd800 && code < 0xdc00 ? at - 1 : at;
}

/**
 * A text of any length.
 * @param {string} text
 * @param {'text' | 'code'} [look]
 */
export function longText(text, look = 'text') {
  const box = h(look === 'code' ? 'pre' : 'div', { class: look, dir: 'auto', tabindex: look === 'code' ? '0' : null });
  if (text.length <= FIRST * 1.2) {
    append(box, [visible(text)]);
    return box;
  }
  let shown = cut(text, FIRST);
  append(box, [visible(text.slice(0, shown))]);
  const size = bytes(new Blob([text]).size);
  const more = h('button', { class: 'btn more', type: 'button' });
  const rest = () => {
    more.textContent = `Show more (${bytes(text.length - shown)} of ${size} left)`;
  };
  more.addEventListener('click', () => {
    const end = cut(text, Math.min(text.length, shown + PIECE));
    append(box, [visible(text.slice(shown, end))]);
    shown = end;
    if (shown >= text.length) more.remove();
    else rest();
  });
  rest();
  return h(
    'div',
    { class: 'stack' },
    box,
    h(
      'div',
      { class: 'actions' },
      more,
      copyButton(() => text, 'Copy all'),
    ),
  );
}

/** JSON on lines of its own; anything else as it is. @param {string} text */
export function pretty(text) {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed) || trimmed.length > 2_000_000) return text;
  try {
    return JSON.stringify(JSON.parse(trimmed), null, 2);
  } catch {
    return text;
  }
}

/** The first line of it, for a folded part. @param {string} text */
export function preview(text) {
  return text.slice(0, 200).replace(/\s+/g, ' ');
}

/**
 * Something that opens; its content is made when it does.
 * @param {(Node | string)[]} summary
 * @param {() => Node | Node[]} content
 * @param {{ open?: boolean, className?: string }} [options]
 */
export function fold(summary, content, { open = false, className = '' } = {}) {
  const inside = h('div', { class: 'inside' });
  const details = h('details', { class: `fold ${className}`, open }, h('summary', null, summary), inside);
  let made = false;
  const make = () => {
    if (made || !details.open) return;
    made = true;
    append(inside, [content()]);
  };
  details.addEventListener('toggle', make);
  if (open) make();
  return details;
}
