// Attempts at a rollout: why the earlier ones ended, and what they called.

import { h } from '../dom.js';
import { count, duration, plural, words } from '../format.js';
import { card } from './bits.js';
import { fold, visible } from './text.js';

/** @typedef {import('../types').Call} Call */
/** @typedef {import('../types').EarlierAttempt} EarlierAttempt */

/** @param {any} rollout @param {(call: number) => void} onCall */
export function attempts(rollout, onCall) {
  /** @type {EarlierAttempt[]} */
  const earlier = rollout.earlier_attempts;
  if (!earlier.length) return null;
  return card(
    `Attempts (${rollout.attempts})`,
    [
      h(
        'ol',
        { class: 'attempts' },
        earlier.map(({ attempt, ended_because: why, calls }) =>
          h(
            'li',
            null,
            h('strong', null, `Attempt ${attempt}`),
            h(
              'p',
              { class: why ? 'small' : 'small muted' },
              why ? visible(spelled(why)) : 'Interrupted: no result was recorded.',
            ),
            calls.length
              ? fold([plural(calls.length, 'model call')], () =>
                  h(
                    'ul',
                    { class: 'tree' },
                    calls.map((call) => callLine(call, onCall)),
                  ),
                )
              : h('p', { class: 'small muted' }, 'It made no model call.'),
          ),
        ),
        h(
          'li',
          null,
          h('strong', null, `Attempt ${rollout.attempts}`),
          h(
            'p',
            { class: 'small' },
            rollout.outcome ? 'Its result and its calls are the ones shown on this page.' : 'Under way.',
          ),
        ),
      ),
    ],
    h('span', { class: 'small muted' }, 'only the last one counts'),
  );
}

/** `agent_failed: …` as people write it. @param {string} why */
function spelled(why) {
  return why.replace(/^[a-z]+_[a-z_]+(?=:|$)/, (word) => words(word));
}

/** @param {Call} call @param {(call: number) => void} onCall */
function callLine(call, onCall) {
  const facts = [
    duration(call.done_at_ms - call.queued_at_ms),
    call.completion_tokens === null ? null : `${count(call.completion_tokens)} tokens`,
    call.status === 200 ? null : `status ${call.status}`,
  ];
  return h(
    'li',
    null,
    h('button', { class: 'btn quiet', type: 'button', onclick: () => onCall(call.call_id) }, `call ${call.number}`),
    h('span', { class: 'small muted' }, ` ${facts.filter(Boolean).join(', ')}`),
    call.error ? h('div', { class: 'reason' }, visible(call.error)) : null,
  );
}
