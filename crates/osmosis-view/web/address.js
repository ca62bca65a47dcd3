// Where we are: the whole state of a page is in its address, so that back, reload and sharing work.
// A viewer has paths; an export, which any web server serves, has everything after `#`.

const exported = document.documentElement.dataset.mode === 'exported';

/** @typedef {{ path: string, query: URLSearchParams }} Address */

export function isExport() {
  return exported;
}

/** @returns {Address} */
export function here() {
  const text = exported ? location.hash.slice(1) || '/' : location.pathname + location.search;
  const at = text.indexOf('?');
  const path = at < 0 ? text : text.slice(0, at);
  return { path: path || '/', query: new URLSearchParams(at < 0 ? '' : text.slice(at + 1)) };
}

/**
 * An address of ours, for `href`.
 * @param {string} path
 * @param {Record<string, string | null | undefined>} [query]
 */
export function link(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) search.set(name, value);
  const text = search.size ? `${path}?${search}` : path;
  return exported ? `#${text}` : text;
}

/** A name as one part of a path. @param {string | number} name */
export function part(name) {
  return encodeURIComponent(String(name));
}

/** @param {string} run */
export function runPath(run) {
  return `/runs/${part(run)}`;
}

/** @param {string} run @param {number} row @param {number} index */
export function rolloutPath(run, row, index) {
  return `${runPath(run)}/rollouts/${row}.${index}`;
}

/** @type {() => void} */
let changed = () => {};

/** @param {() => void} listener Called when we are elsewhere. */
export function onMove(listener) {
  changed = listener;
  addEventListener(exported ? 'hashchange' : 'popstate', () => listener());
  if (exported) return;
  addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
      return;
    const anchor = event.target instanceof Element ? event.target.closest('a') : null;
    if (!anchor || anchor.target || anchor.hasAttribute('download') || anchor.origin !== location.origin) return;
    if (anchor.hash && anchor.pathname === location.pathname && anchor.search === location.search) return;
    event.preventDefault();
    go(anchor.pathname + anchor.search);
  });
}

/** Goes to an address as `link` makes it. @param {string} to */
export function go(to) {
  if (exported) location.hash = to;
  else {
    history.pushState(null, '', to);
    changed();
  }
}

/**
 * Notes the state of this page in its address, without a new entry in the history.
 * @param {Record<string, string | null | undefined>} changes
 */
export function note(changes) {
  const { path, query } = here();
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  history.replaceState(null, '', link(path, Object.fromEntries(query)));
}

/** Takes the key out of the address that opened the page: it was used. */
export function forgetKey() {
  if (!exported && new URLSearchParams(location.search).has('key')) note({ key: null });
}
