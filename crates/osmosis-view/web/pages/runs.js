// All runs: what they are, how they stand, and which to compare.

import { go, here, isExport, link, note, part, runPath } from '../address.js';
import { list, subscribe } from '../api.js';
import { announce, debounced, fill, h } from '../dom.js';
import { ago, count, duration, interval, money, number, percent, short, time } from '../format.js';
import { moveFocus } from '../keys.js';
import { oneAtATime } from '../one_at_a_time.js';
import { intervalBar, segmented, sparkline, statusBadge, withTip } from '../parts/bits.js';

/** @typedef {import('../types').RunOverview} RunOverview */

/** @type {{ key: string, text: string, right?: boolean, wide?: boolean, of: (run: RunOverview) => any }[]} */
const COLUMNS = [
  { key: 'name', text: 'Run', of: (run) => run.run_name },
  { key: 'status', text: 'Status', of: (run) => run.status },
  { key: 'model', wide: true, text: 'Model', of: (run) => run.model ?? '' },
  { key: 'pass', text: 'Pass rate', right: true, of: (run) => run.pass_rate },
  { key: 'reward', text: 'Reward', right: true, of: (run) => run.reward },
  {
    key: 'trend',
    wide: true,
    text: 'Trend',
    of: (run) => (run.trend.length ? run.trend[run.trend.length - 1] - run.trend[0] : null),
  },
  { key: 'tokens', wide: true, text: 'Tokens', right: true, of: (run) => run.prompt_tokens + run.completion_tokens },
  { key: 'cost', wide: true, text: 'Cost', right: true, of: (run) => run.cost },
  { key: 'time', wide: true, text: 'Duration', right: true, of: lasted },
  { key: 'created', text: 'Begun', right: true, of: (run) => run.created_at_ms },
];

/** @param {RunOverview} run */
function lasted(run) {
  const end = run.status === 'running' ? Date.now() : (run.finished_at_ms ?? run.last_result_at_ms);
  return end === null ? null : end - run.created_at_ms;
}

/** @type {Record<string, string>} */
const MEASURED = {
  all_rollouts: 'all rollouts',
  held_out_rows: 'held-out rows, last evaluation',
  last_step: 'last step',
};

/** @param {string[]} _names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function runsPage(_names, signal) {
  /** @type {RunOverview[]} */
  let runs = (await list('runs', undefined, signal)).items;
  const { query } = here();
  const state = {
    text: query.get('q') ?? '',
    kind: query.get('kind') ?? '',
    status: query.get('status') ?? '',
    sort: query.get('sort') ?? '-created',
    picked: new Set((query.get('pick') ?? '').split(',').filter(Boolean)),
  };
  const remember = () =>
    note({
      q: state.text,
      kind: state.kind,
      status: state.status,
      sort: state.sort === '-created' ? '' : state.sort,
      pick: [...state.picked].join(','),
    });

  const search = h('input', {
    type: 'search',
    placeholder: 'Search name, model, dataset…',
    value: state.text,
    'aria-label': 'Search runs',
    dataset: { search: '' },
  });
  search.addEventListener(
    'input',
    debounced(() => {
      state.text = search.value;
      remember();
      draw();
    }, 120),
  );
  const kinds = segmented(
    'Kind of run',
    [
      ['', 'All'],
      ['eval', 'Evaluations'],
      ['train', 'Trainings'],
      ['serve', 'Serving'],
    ],
    state.kind,
    (kind) => {
      state.kind = kind;
      remember();
      draw();
    },
  );
  const statuses = h(
    'select',
    {
      'aria-label': 'Status',
      onchange: () => {
        state.status = statuses.value;
        remember();
        draw();
      },
    },
    [
      ['', 'Any status'],
      ['running', 'Running'],
      ['finished', 'Finished'],
      ['interrupted', 'Interrupted'],
    ].map(([value, text]) => h('option', { value, selected: value === state.status }, text)),
  );
  const compare = h('a', { class: 'btn primary', href: '#', role: 'button' }, 'Compare');
  const head = h('tr');
  const body = h('tbody');
  const table = h(
    'div',
    { class: 'table-wrap', tabindex: '0', role: 'region', 'aria-label': 'Runs' },
    h('table', null, h('thead', null, head), body),
  );
  const empty = h('div', { class: 'empty' });
  const shown = h('p', { class: 'small muted' });

  function drawHead() {
    fill(
      head,
      h('th', { scope: 'col' }, h('span', { class: 'sr-only' }, 'Compare')),
      COLUMNS.map(({ key, text, right, wide }) => {
        const sorted = state.sort === key ? 'ascending' : state.sort === `-${key}` ? 'descending' : null;
        return h(
          'th',
          { scope: 'col', class: `${right ? 'right' : ''} ${wide ? 'wide-only' : ''}`, 'aria-sort': sorted },
          h(
            'button',
            {
              type: 'button',
              onclick: () => {
                state.sort = state.sort === `-${key}` ? key : `-${key}`;
                remember();
                draw();
              },
            },
            text,
            sorted ? (sorted === 'ascending' ? ' ↑' : ' ↓') : '',
          ),
        );
      }),
    );
  }

  function drawCompare() {
    const names = [...state.picked].filter((name) => runs.some((run) => run.run === name));
    const ready = names.length > 1;
    compare.textContent = ready ? `Compare ${names.length} runs` : 'Pick two runs to compare';
    compare.setAttribute('aria-disabled', String(!ready));
    const training = names.every((name) => runs.find((run) => run.run === name)?.kind === 'train');
    const to = training
      ? link(runPath(names[0] ?? ''), { with: names.slice(1).join(',') })
      : link(`/compare/${part(names.join(','))}`);
    if (ready) compare.setAttribute('href', to);
    else compare.removeAttribute('href');
  }

  function draw() {
    const text = state.text.trim().toLowerCase();
    const matching = runs.filter(
      (run) =>
        (!state.kind || run.kind === state.kind) &&
        (!state.status || run.status === state.status) &&
        (!text || [run.run, run.model, run.dataset, run.project].some((value) => value?.toLowerCase().includes(text))),
    );
    const down = state.sort.startsWith('-');
    const column = COLUMNS.find(({ key }) => key === state.sort.replace(/^-/, '')) ?? COLUMNS[COLUMNS.length - 1];
    matching.sort((one, other) => {
      const [a, b] = [column.of(one), column.of(other)];
      if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
    drawHead();
    drawCompare();
    const rewards = matching.map((run) => run.reward).filter((reward) => reward !== null);
    const low = Math.min(0, ...rewards);
    const high = Math.max(1, ...rewards);
    fill(
      body,
      matching.map((run) => row(run, low, high)),
    );
    table.hidden = !matching.length;
    empty.hidden = Boolean(matching.length);
    fill(
      empty,
      runs.length
        ? 'No run matches. Change the search or the filters.'
        : [
            h('p', null, h('strong', null, 'No runs yet.')),
            h(
              'p',
              null,
              'Make one with ',
              h('code', null, 'osmosis eval submit CONFIG'),
              ' or ',
              h('code', null, 'osmosis demo'),
              '; it appears here by itself.',
            ),
          ],
    );
    shown.textContent =
      matching.length === runs.length
        ? `${count(runs.length)} runs`
        : `${count(matching.length)} of ${count(runs.length)} runs`;
  }

  /** @param {RunOverview} run @param {number} low @param {number} high */
  function row(run, low, high) {
    const href = link(runPath(run.run));
    const box = h('input', {
      type: 'checkbox',
      checked: state.picked.has(run.run),
      'aria-label': `Compare ${run.run_name}`,
      onchange: () => {
        if (box.checked) state.picked.add(run.run);
        else state.picked.delete(run.run);
        remember();
        drawCompare();
      },
    });
    const measured = () => `over ${MEASURED[run.measured_on]}`;
    const live = run.status === 'running';
    return h(
      'tr',
      { class: 'link', dataset: { run: run.run } },
      h('td', null, box),
      h(
        'td',
        { class: 'name' },
        h('a', { href, class: 'row-link' }, run.run_name),
        h(
          'span',
          { class: 'sub' },
          h('span', { class: 'tag' }, run.kind),
          ' ',
          run.project ?? '',
          run.dataset ? ` · ${run.dataset}` : '',
        ),
      ),
      h(
        'td',
        null,
        statusBadge(run.status),
        run.steps !== null
          ? h('span', { class: 'sub' }, `step ${run.steps} · ${count(run.done)} rollouts`)
          : h('span', { class: 'sub' }, `${count(run.done)} of ${count(run.total)}`),
        live && run.total
          ? h('div', { class: 'progress' }, h('span', { style: { width: `${(100 * run.done) / run.total}%` } }))
          : null,
      ),
      h('td', { class: 'wide-only' }, run.model ?? h('span', { class: 'muted' }, '–')),
      withTip(
        h(
          'td',
          { class: 'right' },
          h('strong', null, percent(run.pass_rate)),
          h('span', { class: 'sub' }, interval(run.pass_rate_ci95, percent)),
          intervalBar(run.pass_rate, run.pass_rate_ci95, 0, 1),
        ),
        measured,
      ),
      withTip(
        h(
          'td',
          { class: 'right' },
          h('strong', null, number(run.reward)),
          h('span', { class: 'sub' }, interval(run.reward_ci95, number)),
          intervalBar(run.reward, run.reward_ci95, low, high),
        ),
        measured,
      ),
      h('td', { class: 'wide-only' }, sparkline(run.trend)),
      withTip(
        h('td', { class: 'right wide-only' }, short(run.prompt_tokens + run.completion_tokens)),
        () =>
          `${count(run.prompt_tokens)} prompt tokens\n${count(run.completion_tokens)} completion tokens\n${count(run.model_calls)} model calls`,
      ),
      h('td', { class: 'right wide-only' }, money(run.cost)),
      h('td', { class: 'right wide-only' }, duration(lasted(run))),
      withTip(h('td', { class: 'right' }, ago(run.created_at_ms)), () => time(run.created_at_ms)),
    );
  }

  draw();
  const content = [
    h(
      'div',
      { class: 'page-head' },
      h(
        'div',
        { class: 'titles' },
        h('h1', null, isExport() ? 'Exported runs' : 'Runs'),
        shown,
        isExport()
          ? h(
              'p',
              { class: 'small muted' },
              'A static copy: it does not update. Searches find words in any order; secrets are redacted.',
            )
          : null,
      ),
      h('div', { class: 'actions' }, compare),
    ),
    h('div', { class: 'toolbar' }, h('div', { class: 'grow' }, search), kinds, statuses),
    table,
    empty,
  ];
  const refresh = oneAtATime(async () => {
    try {
      const before = runs.length;
      runs = (await list('runs', undefined, signal)).items;
      const focused = document.activeElement?.closest('tr')?.dataset.run;
      draw();
      if (focused)
        /** @type {HTMLElement | null} */ (body.querySelector(`tr[data-run="${CSS.escape(focused)}"] a`))?.focus();
      if (runs.length > before) announce('A new run began');
    } catch {
      // The next event tries again.
    }
  });
  // The first event is no change, but something may have changed between the list and it.
  const end = subscribe('events', 'runs', () => void refresh(), refresh);
  return {
    title: 'Runs',
    crumbs: [{ text: 'Runs' }],
    content,
    leave: end,
    keys: [
      {
        keys: ['j', 'ArrowDown'],
        does: 'next run',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', 1);
        },
      },
      {
        keys: ['k', 'ArrowUp'],
        does: 'previous run',
        run: (event) => {
          event.preventDefault();
          moveFocus('a.row-link', -1);
        },
      },
      {
        keys: ['x'],
        does: 'pick the run for a comparison',
        run: () => document.activeElement?.closest('tr')?.querySelector('input')?.click(),
      },
      {
        keys: ['c'],
        does: 'compare the picked runs',
        run: () => {
          const to = compare.getAttribute('href');
          if (to) go(to);
        },
      },
    ],
  };
}
