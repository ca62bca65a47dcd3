// One run: numbers, curves, failures, and every rollout in a grid.

import { go, here, isExport, link, note, part, rolloutPath, runPath } from '../address.js';
import { data, subscribe } from '../api.js';
import { announce, debounced, fill, h } from '../dom.js';
import { count, plural, time, words } from '../format.js';
import { oneAtATime } from '../one_at_a_time.js';
import { card, copyButton, field, segmented, stateDot, statusBadge } from '../parts/bits.js';
import { filtered, linesOf, sorted } from '../parts/grid_filter.js';
import { searchExport } from '../parts/export_search.js';
import { rolloutTable, rowTexts } from '../parts/rollout_table.js';
import { rewardColor, rewardRange, rolloutGrid } from '../parts/rollout_grid.js';
import { conclusion, durations, failures, headlines, histogram, outcomes } from '../parts/run_numbers.js';
import { trainingCurves } from '../parts/training_curves.js';
import { fold, longText } from '../parts/text.js';

/** @typedef {import('../types').RunPage} RunPage */
/** @typedef {import('../types').RolloutGrid} RolloutGrid */

/** @param {string[]} names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function runPage([run], signal) {
  const at = `runs/${part(run)}`;
  /** @type {[RunPage, RolloutGrid]} */
  let [page, grid] = await Promise.all([data(at, undefined, signal), data(`${at}/grid`, undefined, signal)]);
  const { query } = here();
  const state = {
    outcomes: new Set((query.get('outcome') ?? '').split(',').filter(Boolean)),
    min: query.get('min') ?? '',
    max: query.get('max') ?? '',
    q: query.get('q') ?? '',
    tool: query.get('tool') ?? '',
    row: query.get('row') ?? '',
    held: query.get('rows') ?? '',
    sort: query.get('sort') ?? 'row',
    color: query.get('color') ?? 'reward',
    view: query.get('view') ?? 'grid',
  };
  const remember = () =>
    note({
      outcome: [...state.outcomes].join(','),
      min: state.min,
      max: state.max,
      q: state.q,
      tool: state.tool,
      row: state.row,
      rows: state.held,
      sort: state.sort === 'row' ? '' : state.sort,
      color: state.color === 'reward' ? '' : state.color,
      view: state.view === 'grid' ? '' : state.view,
    });
  /** @type {Set<string> | null} */
  let matching = null;
  const cells = rolloutGrid({
    open: (place) => go(link(rolloutPath(run, grid.row_index[place], grid.run_index[place]))),
    openRow: (row) => go(link(`${runPath(run)}/rows/${row}`)),
    rowTexts: async (rows) => {
      const items = await rowTexts(at, rows);
      return new Map(items.map((item) => [item.row_index, item.text]));
    },
  });
  const numbers = h('div');
  const aside = h('div', { class: 'grid-2' });
  const failed = h('div');
  const head = h('div', { class: 'page-head' });
  const summary = h('p', { class: 'small muted', role: 'status' });
  const results = h('div');
  const chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'Outcomes' });
  const curves = page.training ? trainingCurves(run, page, signal) : null;

  function drawHead() {
    const { overview, record } = page;
    fill(
      head,
      h(
        'div',
        { class: 'titles' },
        h('h1', null, overview.run_name),
        h(
          'div',
          { class: 'facts' },
          statusBadge(overview.status),
          h('span', { class: 'tag' }, overview.kind),
          overview.model ? h('span', null, overview.model) : null,
          overview.dataset ? h('span', null, `dataset ${overview.dataset}`) : null,
          overview.project ? h('span', null, `project ${overview.project}`) : null,
          h('span', null, `begun ${time(overview.created_at_ms)}`),
        ),
      ),
      h(
        'div',
        { class: 'actions' },
        copyButton(() => record.config, 'Copy config'),
        isExport()
          ? null
          : copyButton(
              () => `osmosis ${overview.kind === 'serve' ? 'gateway' : overview.kind} info ${overview.run_name}`,
              'Copy command',
            ),
      ),
    );
  }

  function drawNumbers() {
    fill(numbers, headlines(page));
    const range = rewardRange(grid);
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    fill(
      aside,
      outcomes(page, (name) => {
        state.outcomes = new Set([name]);
        remember();
        draw();
        results.scrollIntoView({ block: 'start' });
      }),
      histogram(
        grid,
        range,
        (low, high) => {
          [state.min, state.max] = [String(low), String(high)];
          min.value = state.min;
          max.value = state.max;
          remember();
          draw();
        },
        (share) => rewardColor(share, dark),
      ),
      durations(page),
    );
    fill(failed, conclusion(page), failures(page));
  }

  /** What each filter leaves. */
  function draw() {
    const known = state.min === '' ? null : Number(state.min);
    const most = state.max === '' ? null : Number(state.max);
    const places = filtered(grid, { outcomes: state.outcomes, min: known, max: most, matching, held: state.held });
    const lines = sorted(grid, linesOf(grid, places), state.sort);
    const total = grid.row_index.length;
    summary.textContent =
      places.length === total
        ? `${plural(total, 'rollout')} in ${plural(lines.length, 'row')}`
        : `${count(places.length)} of ${plural(total, 'rollout')}, in ${plural(lines.length, 'row')}`;
    drawChips();
    if (!places.length) {
      cells.element.remove();
      fill(
        results,
        h(
          'div',
          { class: 'empty' },
          total
            ? [
                'No rollout matches. ',
                h('button', { class: 'btn', type: 'button', onclick: reset }, 'Clear the filters'),
              ]
            : 'No rollouts yet. They appear here as they begin.',
        ),
      );
    } else if (state.view === 'list')
      fill(
        results,
        rolloutTable(
          run,
          grid,
          lines.flatMap((line) => [...line.places]),
          draw,
        ),
      );
    else {
      if (cells.element.parentElement !== results) fill(results, cells.element);
      cells.show(grid, lines, state.color);
    }
  }

  function reset() {
    Object.assign(state, { outcomes: new Set(), min: '', max: '', q: '', tool: '', row: '', held: '' });
    matching = null;
    for (const input of [min, max, q, tool, row]) input.value = '';
    remember();
    draw();
  }

  function drawChips() {
    const counts = new Array(grid.states.length).fill(0);
    let passed = 0;
    for (let place = 0; place < grid.state.length; place += 1) {
      counts[grid.state[place]] += 1;
      passed += grid.passed[place];
    }
    const chip = (/** @type {string} */ name, /** @type {string} */ text, /** @type {number} */ n) =>
      h(
        'button',
        {
          class: 'chip',
          type: 'button',
          'aria-pressed': String(state.outcomes.has(name)),
          onclick: () => {
            if (!state.outcomes.delete(name)) state.outcomes.add(name);
            remember();
            draw();
          },
        },
        stateDot(name === 'passed' ? 'scored' : name),
        text,
        h('span', { class: 'muted num' }, count(n)),
      );
    const scored = counts[grid.states.indexOf('scored')];
    fill(
      chips,
      passed ? chip('passed', 'passed', passed) : null,
      scored - passed ? chip('not_passed', 'did not pass', scored - passed) : null,
      grid.states.map((name, i) => (counts[i] && name !== 'scored' ? chip(name, words(name), counts[i]) : null)),
    );
  }

  const searching = h('span', { class: 'small muted', role: 'status' });
  let searches = 0;
  async function search() {
    const mine = (searches += 1);
    if (!state.q && !state.tool && !state.row) {
      matching = null;
      searching.textContent = '';
      return draw();
    }
    searching.textContent = 'Searching…';
    try {
      /** @type {{ rollouts: [number, number][], searched: number, finished: number }[]} */
      const found = isExport()
        ? await searchExport(at, state, grid)
        : await data(
            `${at}/matches`,
            Object.fromEntries(
              Object.entries({ q: state.q, tool: state.tool, row: state.row }).filter(([, text]) => text),
            ),
            signal,
          );
      if (mine !== searches) return;
      const sets = found.map(({ rollouts }) => new Set(rollouts.map(([row, index]) => `${row}.${index}`)));
      matching = sets.reduce((all, set) => new Set([...all].filter((key) => set.has(key))));
      const growing = found.find(({ searched, finished }) => searched < finished);
      searching.textContent = growing
        ? `Indexing transcripts: ${Math.floor((100 * growing.searched) / growing.finished)}%`
        : '';
      draw();
      if (growing)
        setTimeout(() => {
          if (mine === searches && !signal.aborted) void search();
        }, 300);
      else announce(summary.textContent ?? '');
    } catch (error) {
      if (!signal.aborted) searching.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  const typed = debounced(() => {
    remember();
    void search();
  }, 220);
  /** @param {'q' | 'tool' | 'row'} key @param {string} placeholder */
  const box = (key, placeholder) => {
    const input = h('input', { type: 'search', placeholder, value: state[key] });
    input.addEventListener('input', () => {
      state[key] = input.value;
      typed();
    });
    return input;
  };
  const q = box('q', 'words in a transcript');
  q.dataset.search = '';
  const tool = box('tool', 'search, multiply…');
  const row = box('row', 'text of the row');
  /** @param {'min' | 'max'} key */
  const bound = (key) => {
    const input = h('input', {
      type: 'number',
      step: 'any',
      value: state[key],
      'aria-label': key === 'min' ? 'Lowest reward' : 'Highest reward',
      placeholder: key,
    });
    input.addEventListener(
      'input',
      debounced(() => {
        state[key] = input.value;
        remember();
        draw();
      }, 150),
    );
    return input;
  };
  const min = bound('min');
  const max = bound('max');
  const sort = h(
    'select',
    {
      onchange: () => {
        state.sort = sort.value;
        remember();
        draw();
      },
    },
    [
      ['row', 'Row'],
      ['reward', 'Lowest reward'],
      ['-reward', 'Highest reward'],
      ['-variance', 'Most variance'],
      ['-length', 'Longest'],
      ['length', 'Shortest'],
      ['-time', 'Slowest'],
      ['time', 'Fastest'],
    ].map(([value, text]) => h('option', { value, selected: value === state.sort }, text)),
  );
  const held = h(
    'select',
    {
      onchange: () => {
        state.held = held.value;
        remember();
        draw();
      },
    },
    [
      ['', 'All rows'],
      ['train', 'Trained on'],
      ['sampled', 'Held out, sampled'],
      ['greedy', 'Held out, greedy'],
    ].map(([value, text]) => h('option', { value, selected: value === state.held }, text)),
  );
  const views = segmented(
    'View',
    [
      ['grid', 'Grid'],
      ['list', 'List'],
    ],
    state.view,
    (view) => {
      state.view = view;
      remember();
      draw();
    },
  );
  const tints = segmented(
    'Colour',
    [
      ['reward', 'By reward'],
      ['outcome', 'By outcome'],
    ],
    state.color,
    (color) => {
      state.color = color;
      remember();
      draw();
    },
  );

  drawHead();
  drawNumbers();
  const content = [
    head,
    numbers,
    curves?.element ?? null,
    aside,
    failed,
    card(
      'Rollouts',
      [
        h(
          'div',
          { class: 'toolbar' },
          h('div', { class: 'grow' }, field('Text in transcripts', q)),
          field('Tool called', tool),
          field('Dataset row', row),
          h('div', { class: 'field' }, h('span', null, 'Reward'), h('div', { class: 'actions' }, min, max)),
          field('Sort rows by', sort),
          page.training ? field('Rows', held) : null,
        ),
        chips,
        h('div', { class: 'actions' }, summary, searching, h('span', { class: 'push' }), tints, views),
        results,
      ],
      h('span', { class: 'small muted wide-only' }, 'a line is a dataset row, a cell one rollout'),
    ),
    fold(['Config and what the run is pinned to'], () => [
      h('h3', null, 'Config'),
      longText(page.record.config || 'none', 'code'),
      h('h3', null, 'Pinned'),
      longText(JSON.stringify(page.record.pinned, null, 2), 'code'),
    ]),
  ].filter((node) => node !== null);
  const wrapped = h('div', { class: 'stack' }, content);

  let refreshed = performance.now();
  let due = false;
  const refresh = oneAtATime(async () => {
    due = false;
    refreshed = performance.now();
    try {
      [page, grid] = await Promise.all([data(at, undefined, signal), data(`${at}/grid`, undefined, signal)]);
      drawHead();
      drawNumbers();
      draw();
      await curves?.refresh(page);
    } catch {
      // The next change tries again.
    }
  });
  let first = true;
  /** The viewer ends: nobody answers after the last look. */
  let over = false;
  const progressed = (/** @type {{ live: boolean }} */ { live }) => {
    if (first) {
      first = false;
      // A run that goes on may have changed between its page and this event.
      if (page.overview.status !== 'running') return;
    }
    if (due) return;
    due = true;
    // Large runs are looked at less often; how a run ended is shown at once.
    const pause = !live ? 0 : grid.row_index.length > 20_000 ? 6000 : 1200;
    setTimeout(
      () => {
        if (!signal.aborted && !over) void refresh();
      },
      Math.max(0, pause - (performance.now() - refreshed)),
    );
  };
  const end = subscribe(`${at}/events`, 'progress', progressed, async () => {
    over = true;
    await refresh();
    await cells.know([...new Set(grid.row_index)].slice(0, 500));
  });
  return {
    title: page.overview.run_name,
    crumbs: [{ text: 'Runs', href: link('/') }, { text: page.overview.run_name }],
    content: wrapped,
    entered: () => {
      draw();
      void search();
      curves?.entered();
    },
    leave: () => {
      end();
      cells.end();
    },
    keys: [
      {
        keys: ['j', 'ArrowDown'],
        does: 'into the grid, then the next row',
        run: (event) => {
          event.preventDefault();
          focusGrid();
        },
      },
      {
        keys: ['k', 'ArrowUp'],
        does: 'into the grid, then the previous row',
        run: (event) => {
          event.preventDefault();
          focusGrid();
        },
      },
      { keys: ['Enter'], does: 'open the chosen rollout (in the grid)', run: () => {} },
      { keys: ['g'], does: 'all rollouts of the chosen row (in the grid)', run: () => {} },
    ],
  };

  function focusGrid() {
    const scroller = cells.element.querySelector('.scroller');
    if (scroller instanceof HTMLElement && cells.element.isConnected) {
      scroller.focus({ preventScroll: true });
      cells.element.scrollIntoView({ block: 'nearest' });
    } else /** @type {HTMLElement | null} */ (document.querySelector('a.row-link'))?.focus();
  }
}
