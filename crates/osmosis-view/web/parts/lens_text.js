// The tokens of one path as text. Only what is near the window is in the page: a path may have a hundred thousand.

import { announce, h, tip } from '../dom.js';
import { number } from '../format.js';

/** @typedef {import('../types').RolloutTokens} RolloutTokens */
/** @typedef {import('../types').SampleTokens} SampleTokens */
/** @typedef {import('../types').TokenCall} TokenCall */

/** Tokens that come into the page together. */
const BLOCK = 160;
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
    /** @type {HTMLElement[]} */
    this.blocks = [];
    for (let from = 0; from < this.length; from += BLOCK) {
      const block = h('div', { class: 'block', dataset: { from } });
      this.blocks.push(block);
      this.element.append(block);
    }
    this.watch = new IntersectionObserver(
      (seen) => {
        for (const { target, isIntersecting, boundingClientRect } of seen) {
          const block = /** @type {HTMLElement} */ (target);
          if (isIntersecting) this.make(block);
          else this.unmake(block, boundingClientRect.height);
        }
      },
      { rootMargin: '700px 0px' },
    );
    this.element.addEventListener('pointermove', (event) => this.hover(event));
    this.element.addEventListener('pointerleave', () => tip(null));
    this.element.addEventListener('click', (event) => {
      const place = this.placeAt(event);
      if (place >= 0) announce(this.describe(place).replaceAll('\n', ', '));
    });
    this.estimate();
  }

  /** Blocks that are not in the page take about the room they will. */
  estimate() {
    for (const block of this.blocks) {
      const from = Number(block.dataset.from);
      let characters = 0;
      let lines = 1;
      for (let at = from; at < Math.min(this.length, from + BLOCK); at += 1) {
        const text = this.text(at);
        characters += text.length;
        for (const char of text) if (char === '\n') lines += 1;
        if (this.marks.has(at)) lines += 2;
      }
      block.style.minHeight = `${Math.max(lines, Math.ceil(characters / 120) + lines / 2) * 24}px`;
    }
  }

  entered() {
    for (const block of this.blocks) this.watch.observe(block);
  }

  /** @param {HTMLElement} block */
  make(block) {
    if (block.childElementCount) return;
    const from = Number(block.dataset.from);
    const fragment = document.createDocumentFragment();
    for (let at = from; at < Math.min(this.length, from + BLOCK); at += 1) {
      const call = this.marks.get(at);
      if (call)
        fragment.append(
          h(
            'span',
            { class: call.branch_reason ? 'turn-mark branch' : 'turn-mark' },
            `call ${call.call}${call.continues === null ? '' : `, continues ${call.continues}`} · ${call.prompt.length} new prompt tokens, ${call.sampled.length} sampled at temperature ${number(call.temperature, 2)}${call.branch_reason ? ` · new branch: ${call.branch_reason}` : ''}${call.masked_because ? ` · ${call.masked_because}` : ''}`,
          ),
        );
      if (at === this.prefix && at > 0)
        fragment.append(h('span', { class: 'prefix-end' }, 'the attempts at this row part here'));
      const token = document.createElement('t');
      token.textContent = this.shown(at);
      token.className = this.look(at);
      token.dataset.at = String(at);
      fragment.append(token);
    }
    block.append(fragment);
    block.style.minHeight = '';
  }

  /** @param {HTMLElement} block @param {number} height As it was seen: asking for it now would lay the page out. */
  unmake(block, height) {
    if (!block.childElementCount) return;
    block.style.minHeight = `${height}px`;
    block.replaceChildren();
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
    for (const token of this.element.querySelectorAll('t'))
      token.className = this.look(Number(/** @type {HTMLElement} */ (token).dataset.at));
  }

  /** @param {MouseEvent} event */
  placeAt(event) {
    const token = event.target instanceof Element ? event.target.closest('t') : null;
    return token instanceof HTMLElement ? Number(token.dataset.at) : -1;
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const at = this.placeAt(event);
    if (at < 0) return tip(null);
    tip(this.describe(at), event.clientX, event.clientY);
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
    const block = this.blocks[Math.floor(Math.min(at, this.length - 1) / BLOCK)];
    if (!block) return;
    this.make(block);
    const token = block.querySelector(`t[data-at="${at}"]`);
    (token ?? block).scrollIntoView({ block: 'center' });
  }

  ids() {
    return JSON.stringify([...this.tokenIds]);
  }

  end() {
    this.watch.disconnect();
  }
}
