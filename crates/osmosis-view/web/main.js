// The page: finds out where we are, shows it, and shows the next one when we move.

import { forgetKey, here, isExport, link, onMove, part } from './address.js';
import { ApiError, data, ENDED, subscribe } from './api.js';
import { byId, fill, h, tip } from './dom.js';
import { listen, setKeys, showBar } from './keys.js';
import { comparePage } from './pages/compare.js';
import { groupPage } from './pages/group.js';
import { rolloutPage } from './pages/rollout.js';
import { runPage } from './pages/run.js';
import { runsPage } from './pages/runs.js';
import { stepPage } from './pages/step.js';
import { tokensPage } from './pages/tokens.js';

/** @typedef {import('./types').Shown} Shown */
/** @typedef {(names: string[], signal: AbortSignal) => Promise<Shown>} Page */

/** @type {[RegExp, Page][]} */
const PAGES = [
  [/^\/$/, runsPage],
  [/^\/runs\/([^/]+)$/, runPage],
  [/^\/runs\/([^/]+)\/rollouts\/([^/]+)$/, rolloutPage],
  [/^\/runs\/([^/]+)\/rollouts\/([^/]+)\/tokens$/, tokensPage],
  [/^\/runs\/([^/]+)\/rows\/([^/]+)$/, groupPage],
  [/^\/runs\/([^/]+)\/steps\/([^/]+)$/, stepPage],
  [/^\/compare\/([^/]+)$/, comparePage],
];

/** What ends the page that is shown. */
let leave = () => {};
let turn = 0;

/** @param {{ text: string, href?: string }[]} crumbs */
function bar(crumbs) {
  showBar(byId('bar'), crumbs, link('/'), isExport() ? 'assets/icon.svg' : '/assets/icon.svg');
}

async function show() {
  leave();
  tip(null);
  const mine = (turn += 1);
  const ending = new AbortController();
  leave = () => ending.abort();
  const { path } = here();
  const main = byId('main');
  const found = PAGES.map(([pattern, page]) => ({ match: pattern.exec(path), page })).find(({ match }) => match);
  setKeys([]);
  main.setAttribute('aria-busy', 'true');
  const slow = setTimeout(() => {
    if (mine === turn) fill(main, h('p', { class: 'loading', role: 'status' }, 'Loading…'));
  }, 250);
  /** @type {Shown} */
  let shown;
  try {
    if (!found?.match) throw new ApiError(404, 'There is no such page.', 'Go back to the list of runs.');
    shown = await found.page(found.match.slice(1).map(decodeURIComponent), ending.signal);
  } catch (error) {
    if (ending.signal.aborted) return;
    shown = { title: 'Not shown', crumbs: [{ text: 'Not shown' }], content: problem(error) };
    const run = found?.page === runPage ? found.match?.[1] : undefined;
    if (run && !isExport() && error instanceof ApiError && error.status === 404)
      shown.leave = openWhenThere(run, shown);
  } finally {
    clearTimeout(slow);
  }
  if (mine !== turn) return;
  document.title = `${shown.title} · osmosis`;
  bar(shown.crumbs);
  setKeys(shown.keys ?? []);
  fill(main, shown.content);
  main.removeAttribute('aria-busy');
  const end = shown.leave;
  if (end) ending.signal.addEventListener('abort', end);
  shown.entered?.();
  performance.mark('osmosis:shown');
}

/**
 * A run that is about to begin has no record yet: its page opens when it has.
 * @param {string} run
 * @param {Shown} shown
 */
function openWhenThere(run, shown) {
  /** @type {HTMLElement} */ (shown.content).append(
    h('p', { class: 'muted', role: 'status' }, 'If the run is about to begin, wait: it opens here.'),
  );
  return subscribe('events', 'runs', async () => {
    try {
      await data(`runs/${part(decodeURIComponent(run))}`);
    } catch {
      return;
    }
    void show();
  });
}

/** @param {unknown} error */
export function problem(error) {
  const message = error instanceof Error ? error.message : String(error);
  const hint = error instanceof ApiError ? error.hint : undefined;
  if (!(error instanceof ApiError)) console.error(error);
  return h(
    'div',
    { class: 'error-box', role: 'alert' },
    h('h1', null, 'This could not be shown'),
    h('p', null, message),
    hint ? h('p', { class: 'muted' }, hint) : null,
    h('p', null, h('a', { href: link('/') }, 'All runs')),
  );
}

addEventListener(ENDED, () => {
  const box = byId('ended');
  if (!box.hidden) return;
  box.hidden = false;
  fill(
    box,
    'This viewer has ended. The page shows the last state; ',
    h('code', null, 'osmosis view'),
    ' opens the runs again.',
  );
});

forgetKey();
listen();
onMove(() => {
  void show();
  byId('main').focus({ preventScroll: true });
  scrollTo(0, 0);
});
bar([]);
void show();
