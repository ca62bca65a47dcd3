// One rollout: what was said, what it earned and why, and everything recorded of it.

import { go, here, link, note, part, rolloutPath, runPath } from '../address.js';
import { data, subscribe } from '../api.js';
import { fill, h } from '../dom.js';
import { count, duration, number, plural, time, words } from '../format.js';
import { moveFocus } from '../keys.js';
import { oneAtATime } from '../one_at_a_time.js';
import { artifacts } from '../parts/artifacts.js';
import { attempts } from '../parts/attempts.js';
import { card, command, outcome } from '../parts/bits.js';
import { callDialog, callTree, timeline } from '../parts/calls.js';
import { fold, longText, visible } from '../parts/text.js';
import { pathElement } from '../parts/transcript.js';

/** @typedef {import('../types').SampleTranscript} SampleTranscript */

const USES = {
  trained: 'Its group was trained on.',
  no_variance: 'Not trained on: all rollouts of this row got the same reward, so none was better than another.',
  incomplete: 'Not trained on: other rollouts of this row have no reward.',
  held_out: 'Never trained on: the row is held out to measure.',
  hypothetical: 'This run does not train. The advantage is what GRPO would make of the rewards of its row.',
};

/** The agent was not to blame, or did not get to the end: neither a pass nor a failure. */
const UNCOUNTED = new Set(['infrastructure_failed', 'cancelled']);

/** @param {string[]} names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function rolloutPage([run, id], signal) {
  const at = `runs/${part(run)}/rollouts/${part(id)}`;
  let [rollout, transcript] = await Promise.all([
    data(at, undefined, signal),
    data(`${at}/transcript`, undefined, signal),
  ]);
  const { row_index: row, run_index: index } = rollout;
  const left = h('div');
  const right = h('aside', { 'aria-label': 'Result and record' });
  const head = h('div', { class: 'page-head' });
  const onCall = (/** @type {number} */ callId) => {
    const earlier = rollout.earlier_attempts.flatMap((/** @type {any} */ attempt) => attempt.calls);
    const is = (/** @type {any} */ one) => one.call_id === callId;
    const call = rollout.calls.find(is);
    if (call) return callDialog(at, call);
    const before = earlier.find(is);
    if (before) callDialog(`${at}/attempts/${before.attempt}`, before);
  };

  function draw() {
    const { query } = here();
    /** @type {{ samples: SampleTranscript[] }} */
    const { samples } = transcript;
    const name = query.get('sample') ?? samples[0]?.sample_id;
    const sample = samples.find(({ sample_id: other }) => other === name) ?? samples[0];
    const path = Math.min(Number(query.get('path') ?? 0), (sample?.paths.length ?? 1) - 1);
    const to = (/** @type {Record<string, string>} */ changes) => link(rolloutPath(run, row, index), changes);
    const tabs =
      samples.length > 1
        ? h(
            'div',
            { class: 'tabs', role: 'tablist', 'aria-label': 'Samples' },
            samples.map((one) =>
              h(
                'a',
                {
                  role: 'tab',
                  href: to({ sample: one.sample_id }),
                  'aria-selected': String(one === sample),
                },
                one.sample_id,
                one.reward === null ? '' : ` · ${number(one.reward)}`,
                one.removed ? ' · removed' : '',
              ),
            ),
          )
        : null;
    const paths =
      sample && sample.paths.length > 1
        ? h(
            'div',
            { class: 'tabs', role: 'tablist', 'aria-label': 'Branches' },
            sample.paths.map((one, i) =>
              h(
                'a',
                {
                  role: 'tab',
                  href: to({ sample: samples.length > 1 ? sample.sample_id : '', path: i ? String(i) : '' }),
                  'aria-selected': String(i === path),
                },
                i ? `Branch ${i + 1}` : 'Main',
                ` · ${plural(one.turns.length, 'turn')}`,
              ),
            ),
          )
        : null;
    fill(
      left,
      tabs,
      paths,
      sample
        ? pathElement(sample, path, onCall)
        : h(
            'div',
            { class: 'empty' },
            rollout.outcome
              ? 'No model call and no message was recorded.'
              : 'Nothing was said yet. This page updates by itself.',
          ),
    );
    drawHead();
    drawRight(samples);
  }

  function drawHead() {
    fill(
      head,
      h(
        'div',
        { class: 'titles' },
        h('h1', null, `Row ${row}, rollout ${index}`),
        h(
          'div',
          { class: 'facts' },
          outcome(rollout.outcome ?? (rollout.attempts ? 'running' : 'waiting'), rollout.passed),
          h('span', null, plural(rollout.model_calls, 'model call')),
          h('span', null, plural(rollout.completion_tokens, 'token')),
          rollout.finished_at_ms ? h('span', null, `finished ${time(rollout.finished_at_ms)}`) : null,
          rollout.regraded_from
            ? h(
                'span',
                null,
                'graded again from ',
                h('a', { href: link(rolloutPath(rollout.regraded_from, row, index)) }, rollout.regraded_from),
              )
            : null,
        ),
      ),
      h(
        'div',
        { class: 'actions' },
        h('a', { class: 'btn', href: link(`${rolloutPath(run, row, index)}/tokens`) }, 'Token lens'),
        h('a', { class: 'btn', href: link(`${runPath(run)}/rows/${row}`) }, `Rollouts of row ${row}`),
        h('button', { class: 'btn', type: 'button', onclick: () => move(-1), 'aria-label': 'Previous rollout' }, '←'),
        h('button', { class: 'btn', type: 'button', onclick: () => move(1), 'aria-label': 'Next rollout' }, '→'),
      ),
    );
  }

  const trained = h('div');
  const tree = h('div', null, h('p', { class: 'muted small' }, 'Loading…'));

  /** @param {SampleTranscript[]} samples */
  function drawRight(samples) {
    const failure = rollout.outcome_details?.failure;
    const lasted = (/** @type {number} */ ms) => duration(rollout.outcome ? ms : null);
    const truth = rollout.ground_truth;
    const judged = rollout.samples.filter((/** @type {any} */ sample) => sample.metrics || sample.extra_fields);
    fill(
      right,
      card(
        'Result',
        [
          h(
            'div',
            { class: 'outcome-banner' },
            h(
              'span',
              { class: 'reward' },
              rollout.reward === null ? words(rollout.outcome ?? 'no result yet') : number(rollout.reward),
            ),
            rollout.passed === null
              ? null
              : UNCOUNTED.has(rollout.outcome)
                ? h('span', { class: 'muted' }, 'not in the pass rate')
                : h('span', { class: rollout.passed ? 'good' : 'bad' }, rollout.passed ? 'passed' : 'did not pass'),
          ),
          rollout.samples.length > 1
            ? h(
                'dl',
                { class: 'kv' },
                rollout.samples.flatMap((/** @type {any} */ sample) => [
                  h('dt', null, sample.id),
                  h('dd', null, sample.remove_sample ? 'removed by the grader' : number(sample.reward)),
                ]),
              )
            : null,
          rollout.error ? h('div', { class: 'notice bad-box' }, visible(rollout.error)) : null,
          failure?.traceback ? fold(['Traceback'], () => longText(failure.traceback, 'code'), { open: true }) : null,
          rollout.outcome_details?.reason ? h('p', null, visible(rollout.outcome_details.reason)) : null,
          truth
            ? h(
                'div',
                null,
                h('h3', null, 'Ground truth'),
                truth.label === null
                  ? h('p', { class: 'muted' }, 'The row has no label.')
                  : longText(truth.label, 'code'),
              )
            : null,
          judged.length || rollout.metrics
            ? h(
                'div',
                null,
                h('h3', null, 'From the grader'),
                judged.map((/** @type {any} */ sample) =>
                  longText(
                    JSON.stringify({ ...(sample.metrics ?? {}), ...(sample.extra_fields ?? {}) }, null, 2),
                    'code',
                  ),
                ),
                rollout.metrics ? longText(JSON.stringify(rollout.metrics, null, 2), 'code') : null,
              )
            : null,
          trained,
        ].map((node) => node),
      ),
      card('Timeline', [timeline(rollout, samples, onCall)]),
      card('Call tree', [tree]),
      attempts(rollout, onCall),
      card('Record', [
        h(
          'dl',
          { class: 'kv' },
          h('dt', null, 'id'),
          h('dd', null, h('code', null, rollout.rollout_id)),
          rollout.versions
            ? [
                h('dt', null, 'weights'),
                h(
                  'dd',
                  null,
                  rollout.versions.min === rollout.versions.max
                    ? `version ${rollout.versions.min}`
                    : `versions ${rollout.versions.min} to ${rollout.versions.max}`,
                ),
              ]
            : null,
          h('dt', null, 'queue'),
          h('dd', null, lasted(rollout.durations.queue_ms)),
          h('dt', null, 'agent'),
          h(
            'dd',
            null,
            `${lasted(rollout.durations.agent_ms)}${rollout.outcome ? ` (model ${duration(rollout.durations.model_ms)})` : ''}`,
          ),
          h('dt', null, 'grading'),
          h(
            'dd',
            null,
            `${lasted(rollout.durations.grade_ms)}${rollout.judge.calls ? `, ${plural(rollout.judge.calls, 'judge call')}` : ''}`,
          ),
          h('dt', null, 'prompt'),
          h(
            'dd',
            null,
            `${count(rollout.prompt_tokens)} tokens${rollout.cached_tokens ? `, ${count(rollout.cached_tokens)} cached` : ''}`,
          ),
        ),
        truth ? fold(['Dataset row'], () => longText(JSON.stringify(truth.row, null, 2), 'code')) : null,
        fold([`Logs (${plural(rollout.logs?.length ?? 0, 'line')})`], () =>
          rollout.logs?.length
            ? longText(rollout.logs.join('\n'), 'code')
            : h('p', { class: 'muted' }, 'User code printed nothing during this rollout.'),
        ),
        fold([`Artifacts (${rollout.artifacts.total_count})`], () => artifacts(at, rollout.artifacts)),
      ]),
      card('Commands', [
        rollout.commands.show ? command(rollout.commands.show, 'Show it in a terminal') : null,
        rollout.commands.run_again ? command(rollout.commands.run_again, 'Run the row again') : null,
        rollout.commands.regrade ? command(rollout.commands.regrade, 'Grade it again') : null,
        command(rollout.commands.export, 'Export the run'),
      ]),
    );
  }

  /** Tokens are large: they come after the page is there. */
  async function loadTokens() {
    try {
      const tokens = await data(`${at}/tokens`, undefined, signal);
      fill(
        tree,
        rollout.calls.length || tokens.samples.length
          ? callTree(tokens.samples, onCall)
          : h('p', { class: 'muted' }, 'No model call was recorded.'),
      );
      const lines = tokens.samples.filter((/** @type {any} */ sample) => sample.advantages.length);
      const why = tokens.samples.find((/** @type {any} */ sample) => sample.without_advantage)?.without_advantage;
      fill(
        trained,
        h('h3', null, 'Training'),
        h('p', { class: 'small' }, USES[/** @type {keyof typeof USES} */ (tokens.group_use)]),
        lines.length
          ? h(
              'dl',
              { class: 'kv' },
              lines.flatMap((/** @type {any} */ sample) => [
                h('dt', null, `advantage, ${sample.sample_id}`),
                h('dd', null, sample.advantages.map((/** @type {number} */ a) => number(a)).join(', ')),
              ]),
            )
          : null,
        why && tokens.group_use !== 'held_out' ? h('p', { class: 'small muted' }, `No advantage: ${why}.`) : null,
        tokens.none_because ? h('p', { class: 'small muted' }, `No token ids: ${tokens.none_because}.`) : null,
      );
    } catch (error) {
      if (!signal.aborted)
        fill(tree, h('p', { class: 'muted small' }, error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {number} step */
  async function move(step) {
    const grid = await data(`runs/${part(run)}/grid`, undefined, signal);
    const place =
      grid.row_index.findIndex(
        (/** @type {number} */ other, /** @type {number} */ i) => other === row && grid.run_index[i] === index,
      ) + step;
    if (place >= 0 && place < grid.row_index.length)
      go(link(rolloutPath(run, grid.row_index[place], grid.run_index[place])));
  }

  draw();
  let end = () => {};
  if (!rollout.outcome) {
    const refresh = oneAtATime(async () => {
      if (rollout.outcome) return;
      try {
        [rollout, transcript] = await Promise.all([
          data(at, undefined, signal),
          data(`${at}/transcript`, undefined, signal),
        ]);
        draw();
        if (rollout.outcome) {
          await loadTokens();
          end();
        }
      } catch {
        // The next change tries again.
      }
    });
    end = subscribe(`runs/${part(run)}/events`, 'progress', () => void refresh(), refresh);
  }
  return {
    title: `${row}.${index} of ${run}`,
    crumbs: [{ text: 'Runs', href: link('/') }, { text: run, href: link(runPath(run)) }, { text: `${row}.${index}` }],
    content: [head, h('div', { class: 'rollout-layout' }, left, right)],
    entered: () => {
      void loadTokens();
      const turn = here().query.get('turn');
      if (turn) document.getElementById(`turn-${Number(turn) - 1}`)?.scrollIntoView();
    },
    leave: () => end(),
    keys: [
      {
        keys: ['j', 'ArrowDown'],
        does: 'next turn',
        run: (event) => {
          event.preventDefault();
          turnBy(1);
        },
      },
      {
        keys: ['k', 'ArrowUp'],
        does: 'previous turn',
        run: (event) => {
          event.preventDefault();
          turnBy(-1);
        },
      },
      { keys: ['n', 'ArrowRight'], does: 'next rollout', run: () => void move(1) },
      { keys: ['p', 'ArrowLeft'], does: 'previous rollout', run: () => void move(-1) },
      { keys: ['t'], does: 'token lens', run: () => go(link(`${rolloutPath(run, row, index)}/tokens`)) },
      { keys: ['g'], does: 'all rollouts of this row', run: () => go(link(`${runPath(run)}/rows/${row}`)) },
      { keys: ['u'], does: 'back to the run', run: () => go(link(runPath(run))) },
    ],
  };

  /** @param {number} step */
  function turnBy(step) {
    moveFocus('.turn', step);
    const focused = document.activeElement?.id.match(/^turn-(\d+)$/);
    if (focused) note({ turn: String(Number(focused[1]) + 1) });
  }
}
