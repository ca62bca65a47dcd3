// What differs between two texts, word by word.

import { h } from '../dom.js';
import { visible } from './text.js';

const MOST = 1500;

/** @param {string} text */
function pieces(text) {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
}

/**
 * The second text, with what only it has marked; what only the first has is shown struck out where it stood.
 * @param {string} first
 * @param {string} second
 */
export function difference(first, second) {
  const box = h('div', { class: 'text', dir: 'auto' });
  if (first === second) {
    box.append(...visible(second));
    return box;
  }
  const [a, b] = [pieces(first), pieces(second)];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail])
    tail += 1;
  const [middleA, middleB] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  box.append(...visible(b.slice(0, head).join('')));
  for (const [kind, text] of middle(middleA, middleB))
    box.append(kind === 'same' ? document.createTextNode(text) : h(kind, null, visible(text)));
  if (tail) box.append(...visible(b.slice(b.length - tail).join('')));
  return box;
}

/** @param {string[]} a @param {string[]} b @returns {['same' | 'ins' | 'del', string][]} */
function middle(a, b) {
  if (a.length * b.length > MOST * MOST)
    return [
      ['del', a.join('').slice(0, 4000)],
      ['ins', b.join('')],
    ];
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1)
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  }
  /** @type {['same' | 'ins' | 'del', string][]} */
  const found = [];
  const push = (/** @type {'same' | 'ins' | 'del'} */ kind, /** @type {string} */ text) => {
    const last = found[found.length - 1];
    if (last?.[0] === kind) last[1] += text;
    else found.push([kind, text]);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      push('same', a[i]);
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      push('del', a[i]);
      i += 1;
    } else {
      push('ins', b[j]);
      j += 1;
    }
  }
  return found;
}
