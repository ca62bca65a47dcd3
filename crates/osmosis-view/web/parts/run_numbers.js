// The headline numbers of a run, its outcomes, rewards, durations and failures.

import { link, runPath } from '../address.js';
import { h } from '../dom.js';
import { count, duration, interval, money, number, percent, plural, short, words } from '../format.js';
import { card, copyButton, headline, stateColor, stateDot, withTip } from './bits.js';

/** @typedef {import('../types').RunPage} RunPage */

const OUTCOMES = ['scored', 'agent_failed', 'timed_out', 'ungraded', 'rejected', 'infrastructure_failed', 'cancelled'];

/** Why a training ended early or learned nothing, and what to do. @param {RunPage} page */
export function conclusion({ training }) {
  const end = training?.end;
  const early = end && end.step < end.planned_steps;
  const said = training?.conclusion;
  if (!early && !said?.cause) return null;
  const advice = said?.advice ?? [];
  return card(early ? 'Ended early' : 'No update', [
    h('p', null, said?.summary ?? end.summary),
    advice.length
      ? h(
          'ul',
          null,
          advice.map((/** @type {string} */ text) => h('li', null, text)),
        )
      : null,
  ]);
}

/** @param {RunPage} page */
export function headlines({ overview, report, training }) {
  const says = report.definitions;
  const best = Math.max(...Object.keys(report.pass_at_k).map(Number), 1);
  const lasted =
    (overview.status === 'running'
      ? Date.now()
      : (overview.finished_at_ms ?? overview.last_result_at_ms ?? overview.created_at_ms)) - overview.created_at_ms;
  if (training) {
    const before = training.before?.sampled;
    const last = training.after ?? training.before;
    const after = last?.sampled;
    const { end } = training;
    const notes = [
      end && end.step < end.planned_steps ? `of ${count(end.planned_steps)} planned` : null,
      training.steps_without_update ? `${count(training.steps_without_update)} without an update` : null,
    ].filter(Boolean);
    return h(
      'dl',
      { class: 'numbers' },
      headline(
        'steps',
        count(training.steps),
        notes.join(', ') || null,
        'A step samples a batch of rollouts, grades them and updates the weights once or several times. Its number is the version of the weights after it.',
      ),
      headline(
        'held-out reward',
        number(after?.mean ?? null),
        last && last.step < training.steps
          ? `step ${last.step}: the last evaluation`
          : before && after !== before
            ? `${number(before.mean)} before training`
            : interval(after?.ci95, number),
        `${says.reward}. Over rows that are never trained on, sampled as in training.`,
      ),
      headline(
        'held-out pass rate',
        percent(after?.pass_rate),
        interval(after?.pass_rate_ci95, percent),
        says.pass_rate,
      ),
      headline(
        'best checkpoint',
        training.best ? `@${training.best.step}` : '–',
        training.best ? 'by held-out pass rate' : training.checkpoints.length ? 'needs held-out rows' : 'none saved',
        training.best?.note ?? null,
      ),
      headline(
        'tokens trained',
        short(training.tokens.trained),
        `of ${short(training.tokens.sampled)} sampled`,
        'Tokens of used groups under the loss mask, and all tokens that the policy sampled in training.',
      ),
      headline(
        'groups used',
        count(training.groups.used),
        `${count(training.groups.no_variance)} flat, ${count(training.groups.incomplete)} incomplete`,
        'A group is the rollouts of one row in one step. In a flat group every rollout got the same reward: it teaches nothing.',
      ),
      headline('time', duration(lasted), overview.status, null),
    );
  }
  const passK =
    best > 1
      ? headline(
          `pass@${best}`,
          percent(report.pass_at_k[best]),
          `pass^${best} ${percent(report.pass_hat_k[best])}`,
          `${says.pass_at_k}. pass^k: ${says.pass_hat_k}`,
        )
      : null;
  return h(
    'dl',
    { class: 'numbers' },
    headline(
      'pass rate',
      percent(report.pass_rate),
      report.pass_rate_ci95
        ? `95%: ${interval(report.pass_rate_ci95, percent)}`
        : `${count(report.passed)} of ${count(report.ran)}`,
      `${says.pass_rate}. ${says.ci95}`,
    ),
    headline(
      'reward',
      number(report.reward.mean),
      report.reward.ci95 ? `95%: ${interval(report.reward.ci95, number)}` : `${count(report.reward.count)} scored`,
      `${says.reward}. ${says.ci95}`,
    ),
    passK,
    headline(
      'rollouts',
      count(overview.done),
      overview.done === overview.total
        ? plural(report.rows, 'row')
        : `of ${count(overview.total)}${overview.active ? `, ${count(overview.active)} active` : ''}`,
      says.ran,
    ),
    headline(
      'model calls',
      count(report.model_calls),
      report.without_model_calls ? `${count(report.without_model_calls)} rollouts made none` : null,
      `${says.calls}. ${says.without_model_calls}`,
    ),
    headline(
      'tokens',
      short(report.prompt_tokens + report.completion_tokens),
      `${short(report.prompt_tokens)} prompt, ${short(report.completion_tokens)} completion`,
      'As the model server counted them, over all rollouts with a result.',
    ),
    headline(
      'cost',
      money(report.cost?.total),
      report.cost ? 'retries included' : 'no prices given',
      'What all calls cost with the prices of the run. Give them with --prompt-price and --completion-price.',
    ),
    headline('time', duration(lasted), overview.status, null),
  );
}

/** @param {RunPage} page @param {(outcome: string) => void} pick */
export function outcomes({ overview, report }, pick) {
  const waiting = overview.total - overview.done;
  const parts = [
    ...OUTCOMES.map((name) => /** @type {[string, number]} */ ([name, report.outcomes[name] ?? 0])),
    /** @type {[string, number]} */ (['waiting', waiting]),
  ].filter(([, n]) => n > 0);
  const total = Math.max(1, overview.total);
  return card('Outcomes', [
    h(
      'div',
      { class: 'bar-stack', 'aria-hidden': 'true' },
      parts.map(([name, n]) => h('span', { style: { width: `${(100 * n) / total}%`, background: stateColor(name) } })),
    ),
    h(
      'div',
      { class: 'legend' },
      parts.map(([name, n]) =>
        h(
          'button',
          { class: 'chip', type: 'button', onclick: () => pick(name) },
          stateDot(name),
          `${words(name)} `,
          h('strong', { class: 'num' }, count(n)),
          h('span', { class: 'muted num' }, percent(n / total)),
        ),
      ),
    ),
  ]);
}

/**
 * @param {import('../types').RolloutGrid} grid
 * @param {[number, number]} range
 * @param {(low: number, high: number) => void} pick
 * @param {(share: number) => string} color
 */
export function histogram(grid, range, pick, color) {
  const values = [];
  for (const reward of grid.reward) if (reward !== null) values.push(reward);
  const distinct = new Set(values);
  const bins =
    distinct.size <= 12 && distinct.size > 0
      ? [...distinct].sort((a, b) => a - b).map((value) => ({ low: value, high: value, count: 0 }))
      : Array.from({ length: 20 }, (_, i) => ({
          low: range[0] + ((range[1] - range[0]) * i) / 20,
          high: range[0] + ((range[1] - range[0]) * (i + 1)) / 20,
          count: 0,
        }));
  for (const value of values) {
    const found =
      distinct.size <= 12
        ? bins.find(({ low }) => low === value)
        : bins[Math.min(19, Math.max(0, Math.floor(((value - range[0]) / (range[1] - range[0])) * 20)))];
    if (found) found.count += 1;
  }
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  if (!values.length) return card('Rewards', [h('p', { class: 'muted' }, 'No rollout has a reward.')]);
  const text = (/** @type {{ low: number, high: number, count: number }} */ { low, high, count: n }) =>
    `${low === high ? `reward ${number(low)}` : `rewards ${number(low)} to ${number(high)}`}: ${plural(n, 'rollout')} (${percent(n / values.length)})`;
  return card(
    'Rewards',
    [
      h(
        'div',
        { class: 'hist', role: 'group', 'aria-label': 'Histogram of rewards' },
        bins.map((bin) =>
          withTip(
            h('button', {
              type: 'button',
              'aria-label': text(bin),
              style: {
                height: `${Math.max(2, (100 * bin.count) / most)}%`,
                background: color(((bin.low + bin.high) / 2 - range[0]) / (range[1] - range[0])),
              },
              onclick: () => pick(bin.low, bin.high),
            }),
            () => text(bin),
          ),
        ),
      ),
      h(
        'div',
        { class: 'hist-axis' },
        h('span', null, number(bins[0].low)),
        h('span', null, number(bins[bins.length - 1].high)),
      ),
    ],
    h('span', { class: 'small muted' }, 'a bar filters the grid'),
  );
}

/** @param {RunPage} page */
export function durations({ report }) {
  const phases = /** @type {[string, string][]} */ ([
    ['queue_ms', 'waiting'],
    ['agent_ms', 'agent'],
    ['model_ms', 'model calls'],
    ['grade_ms', 'grading'],
  ]);
  const shown = phases.filter(
    ([key]) => report.durations[key]?.mean !== null && report.durations[key]?.mean !== undefined,
  );
  const most = Math.max(1, ...shown.map(([key]) => report.durations[key].max ?? 0));
  const at = (/** @type {number} */ ms) => `${(100 * Math.log1p(ms)) / Math.log1p(most)}%`;
  return card(
    'Durations by phase',
    shown.length
      ? [
          h(
            'div',
            { class: 'phases' },
            shown.flatMap(([key, name]) => {
              const { p50: median, p90, max, mean } = report.durations[key];
              return [
                h('span', null, name),
                withTip(
                  h(
                    'div',
                    { class: 'track' },
                    h('i', {
                      style: { left: at(median ?? 0), right: `calc(100% - ${at(p90 ?? max ?? median ?? 0)})` },
                    }),
                    h('b', { style: { left: at(median ?? 0) } }),
                  ),
                  () =>
                    `${name}: mean ${duration(mean)}, median ${duration(median)}, 90% under ${duration(p90)}, longest ${duration(max)}`,
                ),
                h(
                  'span',
                  { class: 'num small' },
                  duration(median),
                  h('span', { class: 'muted' }, ` · p90 ${duration(p90)}`),
                ),
              ];
            }),
          ),
        ]
      : [h('p', { class: 'muted' }, 'Nothing has finished yet.')],
    h('span', { class: 'small muted' }, 'median, logarithmic'),
  );
}

/** @param {RunPage} page */
export function failures({ overview, report }) {
  if (!report.failures.length) return null;
  return card(
    `Failures, grouped (${report.failures.length})`,
    report.failures.slice(0, 40).map((/** @type {import('../types').Failure} */ failure) =>
      h(
        'div',
        { class: 'failure' },
        h(
          'div',
          { class: 'what' },
          h('span', null, stateDot(failure.outcome), ' ', h('code', null, failure.error)),
          h('strong', { class: 'num' }, `× ${count(failure.count)}`),
        ),
        h(
          'div',
          { class: 'what' },
          h(
            'div',
            { class: 'small muted' },
            words(failure.outcome),
            failure.frame ? [' in ', h('code', null, failure.frame)] : null,
            ' · for example ',
            failure.examples
              .slice(0, 5)
              .flatMap((example, at) => [
                at ? ', ' : '',
                h('a', { href: link(`${runPath(overview.run)}/rollouts/${example}`) }, example),
              ]),
          ),
          copyButton(() => failure.rerun, 'Copy the command that runs these again'),
        ),
      ),
    ),
  );
}
