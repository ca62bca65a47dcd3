// The keyboard. A page says what its keys do; help lists them.

import { byId, fill, h } from './dom.js';

/** @typedef {{ keys: string[], does: string, run: (event: KeyboardEvent) => void }} Binding */

/** @type {Binding[]} */
let bindings = [];

/** @param {Binding[]} of The keys of the page that is shown. */
export function setKeys(of) {
  bindings = of;
}

function isTyping() {
  const at = document.activeElement;
  return at instanceof HTMLInputElement || at instanceof HTMLTextAreaElement || at instanceof HTMLSelectElement;
}

export function listen() {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Escape' && isTyping()) {
      /** @type {HTMLElement} */ (document.activeElement).blur();
      return;
    }
    if (isTyping() || document.querySelector('dialog[open]')) return;
    if (event.key === '?') {
      event.preventDefault();
      showHelp();
      return;
    }
    if (event.key === '/') {
      const search = document.querySelector('[data-search]');
      if (search instanceof HTMLInputElement) {
        event.preventDefault();
        search.focus();
        search.select();
      }
      return;
    }
    const found = bindings.find((binding) => binding.keys.includes(event.key));
    if (found) found.run(event);
  });
}

/** @type {Record<string, string>} */
const NAMES = { ArrowUp: '↑', ArrowDown: '↓', ArrowLeft: '←', ArrowRight: '→', ' ': 'Space' };

export function showHelp() {
  const lines = [
    ...bindings.map(({ keys, does }) => ({ keys, does })),
    { keys: ['/'], does: 'search' },
    { keys: ['Esc'], does: 'leave a field, close this' },
    { keys: ['?'], does: 'this help' },
  ];
  const dialog = h(
    'dialog',
    { 'aria-labelledby': 'help-title' },
    h('h2', { id: 'help-title' }, 'Keyboard'),
    h(
      'dl',
      null,
      lines.flatMap(({ keys, does }) => [
        h(
          'dt',
          null,
          keys.flatMap((key, at) => [at ? ' ' : '', h('kbd', null, NAMES[key] ?? key)]),
        ),
        h('dd', null, does),
      ]),
    ),
    h('form', { method: 'dialog' }, h('button', { class: 'btn primary', autofocus: true }, 'Close')),
  );
  dialog.addEventListener('close', () => dialog.remove());
  byId('main').append(dialog);
  dialog.showModal();
}

/**
 * Moves the focus along the elements that match, by `step`.
 * @param {string} selector
 * @param {number} step
 */
export function moveFocus(selector, step) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
  if (!all.length) return;
  const at = all.findIndex((element) => element === document.activeElement || element.contains(document.activeElement));
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + step))];
  next.focus();
  next.scrollIntoView({ block: 'nearest' });
}

/** @param {HTMLElement} bar @param {{ text: string, href?: string }[]} crumbs @param {string} home @param {string} icon */
export function showBar(bar, crumbs, home, icon) {
  const nav = h(
    'nav',
    { 'aria-label': 'Where you are' },
    crumbs.flatMap((crumb, at) => {
      const last = at === crumbs.length - 1;
      const item =
        crumb.href && !last
          ? h('a', { href: crumb.href }, crumb.text)
          : h('span', { 'aria-current': last ? 'page' : null }, crumb.text);
      return [h('span', { class: 'sep', 'aria-hidden': 'true' }, '/'), item];
    }),
  );
  fill(
    bar,
    h(
      'a',
      { class: 'brand', href: home, 'aria-label': 'osmosis, all runs' },
      h('img', { src: icon, alt: '' }),
      h('span', null, 'osmosis'),
    ),
    nav,
    h(
      'button',
      { class: 'btn quiet', type: 'button', 'aria-label': 'Keyboard help', onclick: showHelp },
      h('kbd', null, '?'),
    ),
  );
}
