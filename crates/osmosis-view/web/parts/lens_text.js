// The tokens of one path as text. Only what is near the window is in the page: a path may have a hundred thousand. Neighbours
// of one colour share an element, because the number of elements is what scrolling costs; the pointer finds the token in it.

import { announce, h, tip } from '../dom.js';
import { number } from '../format.js';

/** @typedef {import('../types').RolloutTokens} RolloutTokens */
/** @typedef {import('../types').SampleTokens} SampleTokens */
/** @typedef {import('../types').TokenCall} TokenCall */

/** Tokens that come into the page together: up to the next end of a line, but no more than the second. */
const BLOCK = 160;
const LONGEST_BLOCK = 1200;
/** The logprob that has the last colour. */
const SURPRISING = -5;

export class LensText {
  /** @param {RolloutTokens} tokens @param {SampleTokens} sample @param {number[]} path The numbers of its calls. */
  constructor(tokens, sample, path) {
    this.texts = tokens.texts;
    this.sample = sample;
    const byNumber = new Map(sample.calls.map((call) => [call.call, call]));
    this.calls = path.map((number) => /** @type {TokenCall} */ (byNumber.get(number))).filter(Boolean);
    this.prefix = tokens.group_prefix;
    this.length = this.calls.reduce((sum, call) => sum + call.prompt.length + call.sampled.length, 0);
    this.tokenIds = new Int32Array(this.length);
    /** Place in `calls`; negative (minus one) for prompt tokens. */
    this.of = new Int32Array(this.length);
    this.logprobs = new Float32Array(this.length);
    this.versionOf = new Float64Array(this.length);
    /** @type {Map<number, TokenCall>} Where calls begin. */
    this.marks = new Map();
    let at = 0;
    this.calls.forEach((call, place) => {
      this.marks.set(at, call);
      for (const id of call.prompt) {
        this.tokenIds[at] = id;
        this.of[at] = -1 - place;
        at += 1;
      }
      let run = 0;
      let left = call.versions[0]?.tokens ?? 0;
      call.sampled.forEach((id, i) => {
        while (left === 0 && run < call.versions.length - 1) {
          run += 1;
          left = call.versions[run].tokens;
        }
        left -= 1;
        this.tokenIds[at] = id;
        this.of[at] = place;
        this.logprobs[at] = call.logprobs[i];
        this.versionOf[at] = call.versions[run]?.version ?? 0;
        at += 1;
      });
    });
    this.versions = [...new Set(sample.calls.flatMap((call) => call.versions.map(({ version }) => version)))].sort(
      (a, b) => a - b,
    );
    this.advantage = sample.advantages.length ? sample.advantages[0] : null;
    this.most = Math.max(1, ...sample.advantages.map(Math.abs));
    this.mode = 'logprob';
    this.element = h('div', { class: 'lens', tabindex: '0', role: 'document', 'aria-label': `${this.length} tokens` });
    /** @type {{ element: HTMLElement, from: number, to: number }[]} A block is a paragraph: one begins where a line does. */
    this.blocks = [];
    /** @type {Map<Element, number>} */
    this.placeOf = new Map();
    for (let from = 0; from < this.length;) {
      const to = this.blockEnd(from);
      const block = h('div', { class: 'block' });
      this.placeOf.set(block, this.blocks.length);
      this.blocks.push({ element: block, from, to });
      this.element.append(block);
      from = to;
    }
    this.pointed = h('div', { class: 'pointed', hidden: true, 'aria-hidden': 'true' });
    this.element.append(this.pointed);
    this.watch = new IntersectionObserver(
      (seen) => {
        for (const { target, isIntersecting, boundingClientRect } of seen) {
          const place = this.placeOf.get(target) ?? 0;
          if (isIntersecting) this.make(place);
          else this.unmake(place, boundingClientRect.height);
        }
      },
      { rootMargin: '450px 0px' },
    );
    this.element.addEventListener('pointermove', (event) => this.hover(event));
    this.element.addEventListener('pointerleave', () => this.point(null));
    this.element.addEventListener('click', (event) => {
      const found = this.placeAt(event);
      if (found) announce(this.describe(found.at).replaceAll('\n', ', '));
    });
    this.estimate();
  }

  /** Where the block ends that begins here. @param {number} from */
  blockEnd(from) {
    const most = Math.min(this.length, from + LONGEST_BLOCK);
    for (let at = from + 1; at < most; at += 1) {
      if (this.marks.has(at) || at === this.prefix) return at;
      if (at - from >= BLOCK && this.text(at - 1).endsWith('\n')) return at;
    }
    return most;
  }

  /** Blocks that are not in the page take about the room they will. */
  estimate() {
    for (const { element, from, to } of this.blocks) {
      let characters = 0;
      let lines = 1;
      for (let at = from; at < to; at += 1) {
        const text = this.text(at);
        characters += text.length;
        if (text.includes('\n')) lines += 1;
      }
      if (this.marks.has(from)) lines += 2;
      element.style.minHeight = `${Math.max(lines, Math.ceil(characters / 120) + lines / 2) * 24}px`;
    }
  }

  entered() {
    for (const { element } of this.blocks) this.watch.observe(element);
  }

  /** @param {number} place */
  make(place) {
    const { element, from, to } = this.blocks[place];
    if (element.childElementCount) return;
    const fragment = document.createDocumentFragment();
    const call = this.marks.get(from);
    if (call) fragment.append(this.mark(call));
    if (from === this.prefix && from > 0)
      fragment.append(h('span', { class: 'prefix-end' }, 'the rollouts of this row differ from here on'));
    for (let at = from; at < to;) {
      const look = this.look(at);
      const token = document.createElement('t');
      token.className = look;
      token.dataset.at = String(at);
      let text = '';
      do {
        text += this.shown(at);
        at += 1;
      } while (at < to && this.look(at) === look);
      token.textContent = text;
      fragment.append(token);
    }
    element.append(fragment);
    element.style.minHeight = '';
  }

  /** @param {TokenCall} call */
  mark(call) {
    const facts = [
      `call ${call.call}${call.continues === null ? '' : `, continues ${call.continues}`}`,
      `${call.prompt.length} new prompt tokens, ${call.sampled.length} sampled at temperature ${number(call.temperature, 2)}`,
      call.branch_reason ? `new branch: ${call.branch_reason}` : null,
      call.masked_because,
    ];
    return h(
      'span',
      { class: call.branch_reason ? 'turn-mark branch' : 'turn-mark' },
      facts.filter((fact) => fact !== null).join(' · '),
    );
  }

  /** @param {number} place @param {number} height As it was seen: asking for it now would lay the page out. */
  unmake(place, height) {
    const { element } = this.blocks[place];
    if (!element.childElementCount) return;
    element.style.minHeight = `${height}px`;
    element.replaceChildren();
  }

  /** @param {number} at */
  text(at) {
    return this.texts[this.tokenIds[at]] ?? `⟨${this.tokenIds[at]}⟩`;
  }

  /** @param {number} at */
  logprob(at) {
    return this.logprobs[at];
  }

  /** Line ends and other white space are visible. @param {number} at */
  shown(at) {
    return this.text(at)
      .replace(/\n/g, '⏎\n')
      .replace(/\t/g, '⇥\t')
      .replace(
        /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g,
        (c) => `‹${c.charCodeAt(0).toString(16).padStart(2, '0')}›`,
      )
      .replace(
        /[\u202A-\u202E\u2066-\u2069\u200B-\u200F]/g,
        (c) => `‹U+${c.codePointAt(0)?.toString(16).toUpperCase()}›`,
      );
  }

  /** The class of a token. @param {number} at */
  look(at) {
    const place = this.of[at];
    if (place < 0) return 'p';
    const call = this.calls[place];
    const off = call.trained ? '' : ' off';
    if (this.mode === 'logprob')
      return `l${Math.min(9, Math.max(0, Math.round((9 * this.logprobs[at]) / SURPRISING)))}`;
    if (this.mode === 'version') return `v${Math.max(0, this.versions.indexOf(this.versionOf[at])) % 8}`;
    if (this.mode === 'mask') return call.trained ? 'm0' : `m1${off}`;
    const advantage = this.sample.advantages[Math.min(place, this.sample.advantages.length - 1)];
    if (advantage === undefined || !call.trained) return `a5${off}`;
    return `a${Math.round(5 + (5 * advantage) / this.most)}`;
  }

  /** @param {string} mode */
  color(mode) {
    this.mode = mode;
    this.point(null);
    this.blocks.forEach(({ element }, place) => {
      if (!element.childElementCount) return;
      element.replaceChildren();
      this.make(place);
    });
  }

  /** The token below the pointer, and where it is drawn. @param {MouseEvent} event */
  placeAt({ target, clientX: x, clientY: y }) {
    const run = target instanceof Element ? target.closest('t') : null;
    const text = run?.firstChild;
    if (!(run instanceof HTMLElement) || !text) return null;
    const inside = (/** @type {DOMRect} */ box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
    const range = document.createRange();
    const { length } = run.textContent ?? '';
    let start = 0;
    for (let at = Number(run.dataset.at); start < length; at += 1) {
      const end = start + this.shown(at).length;
      range.setStart(text, start);
      range.setEnd(text, end);
      const box = [...range.getClientRects()].find(inside);
      if (box) return { at, box };
      start = end;
    }
    return null;
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const found = this.placeAt(event);
    this.point(found?.box ?? null);
    if (found) tip(this.describe(found.at), event.clientX, event.clientY);
  }

  /** Draws a frame round a token. @param {DOMRect | null} box */
  point(box) {
    this.pointed.hidden = box === null;
    if (box === null) return tip(null);
    const lens = this.element.getBoundingClientRect();
    this.pointed.style.left = `${box.left - lens.left - 1}px`;
    this.pointed.style.top = `${box.top - lens.top - 1}px`;
    this.pointed.style.width = `${box.width}px`;
    this.pointed.style.height = `${box.height}px`;
  }

  /** @param {number} at */
  describe(at) {
    const place = this.of[at];
    const call = this.calls[place < 0 ? -1 - place : place];
    const lines = [`${JSON.stringify(this.text(at))}  id ${this.tokenIds[at]}, position ${at}`];
    if (place < 0) lines.push(`prompt of call ${call.call}: not sampled, never trained on`);
    else {
      const logprob = this.logprobs[at];
      lines.push(
        `logprob ${number(logprob)} (probability ${(100 * Math.exp(logprob)).toFixed(logprob > -4.6 ? 1 : 3)}%)`,
        `sampled by version ${this.versionOf[at]} in call ${call.call}`,
      );
      lines.push(
        call.trained
          ? this.sample.advantages.length
            ? `under the loss mask, advantage ${number(this.sample.advantages[Math.min(place, this.sample.advantages.length - 1)])}`
            : `under the loss mask, but without an advantage: ${this.sample.without_advantage ?? 'its group was left out'}`
          : `masked: ${call.masked_because ?? 'not sampled'}`,
      );
    }
    return lines.join('\n');
  }

  numbers() {
    let sampled = 0;
    let sum = 0;
    let lowest = -1;
    for (let at = 0; at < this.length; at += 1) {
      if (this.of[at] < 0) continue;
      sampled += 1;
      sum += this.logprobs[at];
      if (lowest < 0 || this.logprobs[at] < this.logprobs[lowest]) lowest = at;
    }
    return { sampled, mean: sampled ? sum / sampled : null, lowest };
  }

  /** @param {number} at */
  jump(at) {
    const place = this.blocks.findIndex(({ to }) => at < to);
    if (place < 0) return;
    this.make(place);
    const { element } = this.blocks[place];
    const runs = [...element.querySelectorAll('t')];
    const run = runs.findLast((one) => Number(/** @type {HTMLElement} */ (one).dataset.at) <= at);
    (run ?? element).scrollIntoView({ block: 'center' });
  }

  ids() {
    return JSON.stringify([...this.tokenIds]);
  }

  end() {
    this.watch.disconnect();
  }
}
