// The curves of a training, of one run or several over each other.

import { go, here, link, note, part, runPath } from '../address.js';
import { data, list } from '../api.js';
import { fill, h } from '../dom.js';
import { number, percent } from '../format.js';
import { card, command, withTip } from './bits.js';
import { PALETTE, chart, legend } from './chart.js';

/** @typedef {import('../types').RunPage} RunPage */
/** @typedef {import('../types').Series} Series */
/** @typedef {{ run: string, steps: any[], page: RunPage }} Trained */

/** Columns of `metrics.jsonl`, by chart. @type {{ title: string, of: { key: string, name: string, dashed?: boolean, low?: string, high?: string, std?: string }[], show?: (y: number) => string, floor?: number }[]} */
const CHARTS = [
  { title: 'Reward in training', of: [{ key: 'reward/mean', name: 'mean', std: 'reward/std' }] },
  { title: 'Pass rate in training', of: [{ key: 'pass_rate', name: 'pass rate' }], show: percent, floor: 0 },
  { title: 'Entropy', of: [{ key: 'entropy', name: 'entropy' }], floor: 0 },
  {
    title: 'KL',
    of: [
      { key: 'kl', name: 'to the sampling policy' },
      { key: 'kl_reference', name: 'to the start model', dashed: true },
    ],
  },
  { title: 'Clip share', of: [{ key: 'clip_fraction', name: 'clipped tokens' }], show: percent, floor: 0 },
  {
    title: 'Logprob mismatch',
    of: [
      { key: 'logprob_mismatch/mean', name: 'mean' },
      { key: 'logprob_mismatch/max', name: 'max', dashed: true },
    ],
    floor: 0,
  },
  {
    title: 'Staleness',
    of: [
      { key: 'staleness/mean', name: 'mean' },
      { key: 'staleness/max', name: 'max', dashed: true },
    ],
    floor: 0,
  },
  { title: 'Tokens per rollout', of: [{ key: 'tokens/sampled', name: 'sampled' }], floor: 0 },
  { title: 'Loss', of: [{ key: 'loss', name: 'loss' }] },
  { title: 'Gradient norm', of: [{ key: 'gradient_norm', name: 'norm' }], floor: 0 },
  {
    title: 'Groups',
    of: [
      { key: 'groups/used', name: 'used' },
      { key: 'groups/no_variance', name: 'flat', dashed: true },
      { key: 'groups/incomplete', name: 'incomplete', dashed: true },
    ],
    floor: 0,
  },
  {
    title: 'Seconds per step',
    of: [
      { key: 'time/rollout', name: 'rollouts' },
      { key: 'time/update', name: 'update' },
      { key: 'time/grade', name: 'grading' },
      { key: 'time/swap', name: 'swap' },
      { key: 'time/save', name: 'saving' },
      { key: 'time/wait_rollouts', name: 'learner waits', dashed: true },
    ],
    floor: 0,
  },
];

const OUTCOMES = ['scored', 'agent_failed', 'timed_out', 'ungraded', 'rejected', 'infrastructure_failed', 'cancelled'];

/** @param {any} metrics @param {string} key */
function value(metrics, key) {
  if (key === 'tokens/sampled') {
    const rollouts = OUTCOMES.reduce((sum, name) => sum + (metrics[`rollouts/${name}`] ?? 0), 0);
    return rollouts ? metrics[key] / rollouts : null;
  }
  return typeof metrics[key] === 'number' ? metrics[key] : null;
}

/**
 * @param {string} run
 * @param {RunPage} first
 * @param {AbortSignal} signal
 */
export function trainingCurves(run, first, signal) {
  const area = h('div', { class: 'charts' }, h('p', { class: 'loading', role: 'status' }, 'Loading the curves…'));
  const names = h('div');
  const reset = h('button', { class: 'btn quiet', type: 'button', onclick: () => zoomTo(null, null) }, 'Reset zoom');
  const others = (here().query.get('with') ?? '').split(',').filter(Boolean);
  const number_ = (/** @type {string | null} */ text) => (text === null || text === '' ? null : Number(text));
  const zoom = { from: number_(here().query.get('x0')), to: number_(here().query.get('x1')) };
  /** @type {Trained[]} */
  let trained = [];
  /** @type {{ redraw: () => void }[]} */
  let drawn = [];

  /** @param {number | null} from @param {number | null} to */
  function zoomTo(from, to) {
    zoom.from = from;
    zoom.to = to;
    note({ x0: from === null ? '' : String(from), x1: to === null ? '' : String(to) });
    reset.hidden = from === null;
    for (const one of drawn) one.redraw();
  }

  /** @param {{ title: string, of: any[], show?: (y: number) => string, floor?: number }} kind */
  function series(kind) {
    /** @type {Series[]} */
    const all = [];
    trained.forEach(({ run: name, steps }, place) => {
      kind.of.forEach((line, i) => {
        const points = steps
          .filter(({ step }) => step > 0)
          .map(({ step, metrics }) => {
            const y = value(metrics, line.key);
            const rollouts = metrics['rollouts/scored'] ?? 0;
            const half =
              line.std && y !== null && metrics[line.std] !== null && rollouts > 1
                ? (1.96 * metrics[line.std]) / Math.sqrt(rollouts)
                : null;
            return {
              x: step,
              y,
              low: half === null || y === null ? null : y - half,
              high: half === null || y === null ? null : y + half,
            };
          });
        if (!points.some(({ y }) => y !== null)) return;
        all.push({
          name: trained.length > 1 ? `${name}: ${line.name}` : line.name,
          color: PALETTE[(trained.length > 1 ? place : i) % PALETTE.length],
          dashed: line.dashed,
          points,
        });
      });
    });
    return all;
  }

  /** Held-out rows, sampled and greedy apart. @param {'mean' | 'pass_rate'} key */
  function heldOut(key) {
    /** @type {Series[]} */
    const all = [];
    trained.forEach(({ run: name, page }, place) => {
      const curve = page.training?.held_out_curve ?? [];
      for (const [decoding, dashed] of /** @type {[string, boolean][]} */ ([
        ['sampled', false],
        ['greedy', true],
      ])) {
        const points = curve
          .filter((/** @type {any} */ point) => point[decoding])
          .map((/** @type {any} */ point) => {
            const score = point[decoding];
            const interval = key === 'mean' ? score.ci95 : score.pass_rate_ci95;
            return { x: point.step, y: score[key], low: interval?.[0] ?? null, high: interval?.[1] ?? null };
          });
        if (points.length)
          all.push({
            name: trained.length > 1 ? `${name}: ${decoding}` : decoding,
            color: PALETTE[(trained.length > 1 ? place : dashed ? 1 : 0) % PALETTE.length],
            dashed,
            points,
          });
      }
    });
    return all;
  }

  function draw() {
    const best = trained.length === 1 ? trained[0].page.training?.best : null;
    const open = (/** @type {number} */ step) => {
      if (trained.length === 1 && step > 0) go(link(`${runPath(run)}/steps/${step}`));
    };
    /** @type {{ title: string, all: Series[], show?: (y: number) => string, floor?: number, mark?: any }[]} */
    const charts = [
      { title: 'Held-out reward', all: heldOut('mean'), mark: best ? { x: best.step, text: '@best' } : null },
      {
        title: 'Held-out pass rate',
        all: heldOut('pass_rate'),
        show: percent,
        floor: 0,
        mark: best ? { x: best.step, text: '@best' } : null,
      },
      ...CHARTS.map((kind) => ({ title: kind.title, all: series(kind), show: kind.show, floor: kind.floor })),
    ];
    const made = charts
      .filter(({ all }) => all.length)
      .map(({ title, all, show, floor, mark }) => {
        const one = chart(title, all, { zoom, onZoom: zoomTo, onPick: open, show, floor, mark });
        return { ...one, legend: all.length > 1 ? legend(all) : null };
      });
    drawn = made;
    fill(
      area,
      made.length
        ? made.map((one) => h('div', { class: 'card' }, one.element, one.legend))
        : h('p', { class: 'empty' }, 'No step is done yet. The curves begin with the first.'),
    );
    requestAnimationFrame(() => {
      for (const one of made) one.redraw();
    });
    reset.hidden = zoom.from === null;
    fill(
      names,
      trained.length > 1
        ? legend(trained.map(({ run: name }, place) => ({ name, color: PALETTE[place % PALETTE.length] })))
        : h('span', { class: 'small muted' }, 'Drag to zoom, double-click to reset, click a step to see its groups.'),
    );
  }

  async function load() {
    const all = [run, ...others];
    trained = await Promise.all(
      all.map(async (name) => ({
        run: name,
        steps: (await list(`runs/${part(name)}/steps`, undefined, signal)).items,
        page: name === run ? first : await data(`runs/${part(name)}`, undefined, signal),
      })),
    );
    draw();
  }

  const saved = h('div');
  function drawCheckpoints() {
    const { checkpoints, best } = first.training;
    fill(
      saved,
      checkpoints.length
        ? card(
            'Checkpoints',
            [
              h(
                'div',
                { class: 'chips' },
                checkpoints.map((/** @type {any} */ { step, path }) =>
                  withTip(
                    h(
                      'span',
                      { class: 'chip' },
                      `step ${step}`,
                      best?.step === step ? h('strong', null, ' @best') : null,
                    ),
                    () => path,
                  ),
                ),
              ),
              command(`model_path = "run:${first.overview.run_name}${best ? '@best' : ''}"`, 'Use it in a config'),
            ],
            h('span', { class: 'small muted' }, best?.note ?? ''),
          )
        : null,
    );
  }
  drawCheckpoints();

  return {
    element: h('div', { class: 'stack' }, h('div', { class: 'actions' }, names, reset), area, saved),
    entered: () => {
      load().catch((error) => {
        if (!signal.aborted) fill(area, h('p', { class: 'error-box' }, error.message));
      });
    },
    /** @param {RunPage} page */
    async refresh(page) {
      first = page;
      drawCheckpoints();
      await load().catch(() => {});
    },
    number,
  };
}
