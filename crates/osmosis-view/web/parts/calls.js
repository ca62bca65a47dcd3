// Model calls: when they were made, which continues which, and their exact bytes.

import { address, raw } from '../api.js';
import { fill, h } from '../dom.js';
import { bytes, count, duration, plural, words } from '../format.js';
import { copyButton, withTip } from './bits.js';
import { longText, pretty } from './text.js';

/** @typedef {import('../types').Call} Call */
/** @typedef {import('../types').SampleTokens} SampleTokens */

/**
 * Calls, tools and grading over time. Between two calls of a sample the agent works: mostly its tools.
 * @param {any} rollout
 * @param {import('../types').SampleTranscript[]} samples
 * @param {(call: number) => void} onCall
 */
export function timeline(rollout, samples, onCall) {
  /** @type {Call[]} */
  const calls = rollout.calls;
  const starts = [rollout.started_at_ms, ...calls.map((call) => call.queued_at_ms)].filter((ms) => ms !== null);
  const ends = [rollout.finished_at_ms, ...calls.map((call) => call.done_at_ms)].filter((ms) => ms !== null);
  if (!starts.length || !ends.length) return h('p', { class: 'muted' }, 'Nothing has happened yet.');
  const [from, to] = [Math.min(...starts), Math.max(...ends, Math.min(...starts) + 1)];
  const span = (
    /** @type {number} */ start,
    /** @type {number} */ end,
    /** @type {string} */ kind,
    /** @type {string} */ text,
    /** @type {(() => void) | null} */ open = null,
  ) =>
    withTip(
      h(open ? 'button' : 'div', {
        class: `span ${kind}`,
        type: open ? 'button' : null,
        'aria-label': open ? text : null,
        onclick: open,
        style: {
          left: `${(100 * (start - from)) / (to - from)}%`,
          width: `${Math.max(0.15, (100 * (end - start)) / (to - from))}%`,
        },
      }),
      () => text,
    );
  /** @type {Map<string, Call[]>} */
  const lanes = new Map();
  for (const call of calls) {
    const lane = call.purpose === 'policy' ? call.sample_id : call.purpose;
    lanes.set(lane, [...(lanes.get(lane) ?? []), call]);
  }
  /** @type {Map<number, string>} Tools that a call asked for. */
  const tools = new Map();
  for (const { turns } of samples)
    for (const turn of turns)
      if (turn.call && turn.tool_calls.length)
        tools.set(turn.call.call_id, turn.tool_calls.map((call) => call.name).join(', '));
  const { durations } = rollout;
  const agentEnd = rollout.finished_at_ms !== null ? rollout.finished_at_ms - durations.grade_ms : null;
  const rows = [...lanes].map(([lane, of]) => {
    const sorted = [...of].sort((a, b) => a.queued_at_ms - b.queued_at_ms);
    const marks = sorted.flatMap((call, i) => {
      const next = sorted[i + 1];
      const asked = tools.get(call.call_id);
      const gap =
        next && asked && next.queued_at_ms > call.done_at_ms
          ? [
              span(
                call.done_at_ms,
                next.queued_at_ms,
                'tool',
                `${asked}: ${duration(next.queued_at_ms - call.done_at_ms)}`,
              ),
            ]
          : [];
      return [
        span(
          call.queued_at_ms,
          call.done_at_ms,
          `${call.purpose === 'policy' ? '' : 'judge'}${call.error || call.status >= 400 ? ' failed' : ''}`,
          `call ${call.number}: ${duration(call.done_at_ms - call.queued_at_ms)}${call.completion_tokens === null ? '' : `, ${count(call.completion_tokens)} tokens`}${call.error ? `\n${call.error}` : ''}`,
          () => onCall(call.call_id),
        ),
        ...gap,
      ];
    });
    return h('div', { class: 'lane' }, h('span', { title: lane }, lane), h('div', { class: 'track' }, marks));
  });
  return h(
    'div',
    { class: 'timeline' },
    h(
      'div',
      { class: 'lane' },
      h('span', null, 'rollout'),
      h(
        'div',
        { class: 'track' },
        rollout.started_at_ms !== null && agentEnd !== null
          ? span(
              Math.max(from, agentEnd - durations.agent_ms),
              agentEnd,
              'agent',
              `agent: ${duration(durations.agent_ms)}, ${duration(durations.model_ms)} of it in model calls`,
            )
          : null,
        agentEnd !== null && durations.grade_ms > 0
          ? span(agentEnd, rollout.finished_at_ms, 'grade', `grading: ${duration(durations.grade_ms)}`)
          : null,
      ),
    ),
    rows,
    h('div', { class: 'scale' }, h('span', null, '0'), h('span', null, duration(to - from))),
    h(
      'div',
      { class: 'legend' },
      [
        ['', 'model call'],
        ['tool', 'tools'],
        ['grade', 'grading'],
        ['failed', 'failed'],
      ].map(([kind, text]) =>
        h(
          'span',
          null,
          h(
            'span',
            { class: 'timeline' },
            h('span', {
              class: `span ${kind}`,
              style: { position: 'static', display: 'inline-block', width: '12px', height: '10px' },
            }),
          ),
          text,
        ),
      ),
    ),
  );
}

/** Which call continues which, and why a new branch began. @param {SampleTokens[]} samples @param {(call: number) => void} onCall */
export function callTree(samples, onCall) {
  const shown = samples.filter(({ calls }) => calls.length);
  if (!shown.length)
    return h(
      'p',
      { class: 'muted' },
      'The tree needs token ids, which this policy did not report. Calls are in the timeline.',
    );
  return h(
    'div',
    null,
    shown.map(({ sample_id: sample, calls }) => {
      /** @param {number | null} parent @returns {HTMLElement | null} */
      const below = (parent) => {
        const own = calls.filter((call) => call.continues === parent);
        if (!own.length) return null;
        // A line without branches is one list, however long.
        const list = h('ul', { class: 'tree' });
        for (const first of own) {
          let call = first;
          for (;;) {
            list.append(item(call, parent === null));
            const next = calls.filter((other) => other.continues === call.call);
            if (next.length !== 1) {
              const branches = next.length ? below(call.call) : null;
              if (branches)
                list.append(
                  h('li', null, h('span', { class: 'reason' }, `${next.length} calls continue this one`), branches),
                );
              break;
            }
            [call] = next;
          }
        }
        return list;
      };
      const item = (/** @type {import('../types').TokenCall} */ call, /** @type {boolean} */ root) =>
        h(
          'li',
          null,
          call.call_id !== null
            ? h(
                'button',
                { class: 'btn quiet', type: 'button', onclick: () => onCall(/** @type {number} */ (call.call_id)) },
                `call ${call.call}`,
              )
            : `call ${call.call}`,
          h(
            'span',
            { class: 'small muted' },
            ` +${count(call.prompt.length)} prompt, ${plural(call.sampled.length, 'token')}`,
            call.trained ? '' : ', not trained on',
          ),
          root && call.branch_reason ? h('div', { class: 'reason' }, `new branch: ${call.branch_reason}`) : null,
          call.masked_because ? h('div', { class: 'reason' }, call.masked_because) : null,
        );
      return h('div', null, shown.length > 1 ? h('h3', null, sample) : null, below(null));
    }),
  );
}

/**
 * The exact bytes of a call, in a window.
 * @param {string} at
 * @param {Call} call
 */
export function callDialog(at, call) {
  const body = h('div', { class: 'stack' }, h('p', { class: 'loading' }, 'Loading…'));
  const dialog = h(
    'dialog',
    { 'aria-labelledby': 'call-title', style: { 'max-width': 'min(1100px, calc(100vw - 32px))', width: '100%' } },
    h(
      'div',
      { class: 'card-head' },
      h('h2', { id: 'call-title' }, `Call ${call.number}`),
      h('form', { method: 'dialog' }, h('button', { class: 'btn' }, 'Close')),
    ),
    h(
      'p',
      { class: 'small muted' },
      `${words(call.dialect)} · ${call.model} · ${call.purpose} · version ${call.policy_version} · status ${call.status} · attempt ${call.attempt}${call.streamed ? ' · streamed' : ''}`,
    ),
    call.error ? h('p', { class: 'notice bad-box' }, call.error) : null,
    body,
  );
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  void Promise.all(
    ['request', 'reply'].map(async (side) => {
      const path = `${at}/calls/${call.number}/${side}`;
      const buffer = await raw(path);
      let text;
      let exact = true;
      try {
        text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(buffer);
      } catch {
        text = new TextDecoder().decode(buffer);
        exact = false;
      }
      const holder = h('div');
      const show = (/** @type {boolean} */ asIs) => fill(holder, longText(asIs ? text : pretty(text), 'code'));
      show(false);
      return h(
        'section',
        { class: 'stack' },
        h(
          'div',
          { class: 'card-head' },
          h('h3', null, `${side === 'request' ? 'Request' : 'Reply'} · ${bytes(buffer.byteLength)}`),
          h(
            'div',
            { class: 'actions' },
            h('button', { class: 'btn quiet', type: 'button', onclick: () => show(true) }, 'As it is'),
            copyButton(() => text),
            h('a', { class: 'btn quiet', href: address(path), download: `call-${call.number}-${side}` }, 'Download'),
          ),
        ),
        exact
          ? null
          : h(
              'p',
              { class: 'notice warn-box' },
              'Some bytes are no UTF-8 and are shown as �. Download for the exact bytes.',
            ),
        holder,
      );
    }),
  ).then(
    (parts) => fill(body, parts),
    (error) => fill(body, h('p', { class: 'error-box' }, error.message)),
  );
}
