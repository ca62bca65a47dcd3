// Elements from JavaScript. Strings only ever become text: nothing that was recorded is parsed as HTML.

/** @typedef {Node | string | number | null | undefined | false} Child */

const SVG = 'http://www.w3.org/2000/svg';

/**
 * @param {Element} element
 * @param {Record<string, any>} props
 */
function apply(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'dataset') Object.assign(/** @type {HTMLElement} */ (element).dataset, value);
    else if (name === 'style') {
      for (const [key, rule] of Object.entries(value))
        /** @type {HTMLElement} */ (element).style.setProperty(key, String(rule));
    } else element.setAttribute(name === 'className' ? 'class' : name, value === true ? '' : String(value));
  }
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any> | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  if (props) apply(element, props);
  append(element, children);
  return element;
}

/**
 * @param {string} tag
 * @param {Record<string, any>} props
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function s(tag, props, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  apply(element, props);
  append(element, children);
  return element;
}

/**
 * @param {Element | DocumentFragment} parent
 * @param {(Child | Child[])[]} children
 */
export function append(parent, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Replaces what an element holds.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Tells screen readers.
 * @param {string} text
 */
export function announce(text) {
  byId('announcer').textContent = text;
}

/**
 * A small window beside the pointer.
 * @param {string | null} text
 * @param {number} [x]
 * @param {number} [y]
 */
export function tip(text, x = 0, y = 0) {
  const element = byId('tip');
  element.hidden = text === null;
  if (text === null) return;
  element.textContent = text;
  const { offsetWidth: width, offsetHeight: height } = element;
  element.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - width - 8))}px`;
  element.style.top = `${y + 18 + height > innerHeight ? Math.max(6, y - height - 10) : y + 18}px`;
}

/**
 * Waits until calls stop for a moment.
 * @template {any[]} A
 * @param {(...args: A) => void} work
 * @param {number} ms
 * @returns {(...args: A) => void}
 */
export function debounced(work, ms) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), ms);
  };
}
