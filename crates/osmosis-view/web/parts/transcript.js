// Turns of a conversation.

import { h } from '../dom.js';
import { count, duration, plural, short } from '../format.js';
import { copyButton } from './bits.js';
import { fold, longText, pretty, preview, visible } from './text.js';

/** @typedef {import('../types').Turn} Turn */
/** @typedef {import('../types').SampleTranscript} SampleTranscript */
/** @typedef {import('../types').Part} Part */

/** @param {Part} part @returns {Node} */
function partOf(part) {
  if (part.kind === 'text') return longText(part.text ?? '');
  if (part.kind === 'image') {
    const url = part.url ?? '';
    // Pictures elsewhere are not loaded: that would tell their server who looks.
    if (/^data:image\/(png|jpeg|gif|webp|bmp|svg\+xml)[;,]/i.test(url))
      return h('img', { src: url, alt: 'image in the transcript', loading: 'lazy' });
    return h('p', { class: 'muted' }, 'image, not loaded: ', h('code', null, visible(url.slice(0, 300))));
  }
  if (part.kind === 'tokens')
    return part.text === null || part.text === undefined
      ? h('p', { class: 'muted' }, `${count(part.count)} token ids`)
      : longText(part.text, 'code');
  return fold(['Other content'], () => longText(JSON.stringify(part.value, null, 2), 'code'));
}

/** All that is said in a turn, as text. @param {Turn} turn */
export function textOf(turn) {
  return [
    turn.reasoning ?? '',
    ...turn.content.map((part) =>
      part.kind === 'text' || part.kind === 'tokens'
        ? (part.text ?? '')
        : part.kind === 'image'
          ? '[image]'
          : JSON.stringify(part.value),
    ),
    ...turn.tool_calls.map((call) => `${call.name}(${call.arguments})`),
  ]
    .filter(Boolean)
    .join('\n');
}

/**
 * @param {Turn} turn
 * @param {number} place
 * @param {{ names: Map<string, string>, onCall?: (call: number) => void, replace?: Node | null, foldSystem?: boolean }} options
 */
export function turnElement(turn, place, { names, onCall, replace = null, foldSystem = true }) {
  const { call } = turn;
  const tool = turn.answers ? names.get(turn.answers) : null;
  const title = turn.role === 'tool' ? `Tool result${tool ? `: ${tool}` : ''}` : turn.role;
  const facts = call
    ? [
        call.completion_tokens !== null ? h('span', null, `${short(call.completion_tokens)} tokens`) : null,
        h('span', null, duration(call.done_at_ms - call.queued_at_ms)),
        call.finish_reason && !['stop', 'tool_calls', 'end_turn', 'tool_use'].includes(call.finish_reason)
          ? h('span', { class: 'warn' }, call.finish_reason)
          : null,
        onCall ? h('button', { class: 'btn quiet', type: 'button', onclick: () => onCall(call.call_id) }, 'raw') : null,
      ]
    : [];
  const body = h('div', { class: 'body' });
  if (turn.reasoning)
    body.append(
      fold(
        [h('span', null, 'Reasoning'), h('span', { class: 'preview' }, preview(turn.reasoning))],
        () => longText(turn.reasoning ?? ''),
        { className: 'reasoning', open: turn.reasoning.length < 400 },
      ),
    );
  const text = turn.content.map((part) => part.text ?? '').join('\n');
  if (replace) body.append(replace);
  else if (turn.role === 'tool') {
    const long = text.length > 700;
    const shown = pretty(text);
    body.append(
      long
        ? fold([h('span', { class: 'preview' }, preview(text))], () => longText(shown, 'code'))
        : turn.content.every((part) => part.kind === 'text')
          ? longText(shown, 'code')
          : h('div', { class: 'stack' }, turn.content.map(partOf)),
    );
  } else if (turn.role === 'system' && foldSystem && text.length > 500)
    body.append(fold([h('span', { class: 'preview' }, preview(text))], () => turn.content.map(partOf)));
  else for (const part of turn.content) body.append(partOf(part));
  for (const wanted of turn.tool_calls) {
    const shown = pretty(wanted.arguments);
    body.append(
      fold(
        [h('strong', null, wanted.name), h('span', { class: 'preview' }, preview(wanted.arguments))],
        () => longText(shown, 'code'),
        { open: shown.length < 600 && shown.includes('\n') },
      ),
    );
  }
  if (!body.childElementCount) body.append(h('p', { class: 'muted' }, 'nothing'));
  return h(
    'article',
    {
      class: `turn ${turn.role}${turn.is_error ? ' is-error' : ''}`,
      tabindex: '-1',
      id: `turn-${place}`,
      'aria-label': `turn ${place + 1}, ${title}`,
    },
    h(
      'header',
      null,
      h('span', { class: 'role' }, title),
      turn.is_error ? h('span', { class: 'bad' }, 'reported an error') : null,
      h(
        'span',
        { class: 'meta' },
        facts,
        copyButton(() => textOf(turn)),
      ),
    ),
    body,
  );
}

/** The names of the tools by the ids of their calls. @param {Turn[]} turns */
export function toolNames(turns) {
  return new Map(
    turns.flatMap((turn) => turn.tool_calls.map((call) => /** @type {[string, string]} */ ([call.id, call.name]))),
  );
}

/**
 * One path of a sample.
 * @param {SampleTranscript} sample
 * @param {number} path
 * @param {(call: number) => void} [onCall]
 */
export function pathElement(sample, path, onCall) {
  const chosen = sample.paths[path];
  if (!chosen) return h('p', { class: 'empty' }, 'Nothing was said in this sample.');
  const names = toolNames(sample.turns);
  const tools = sample.tools.length
    ? fold(
        [
          h('span', null, `${plural(sample.tools.length, 'tool')} offered`),
          h(
            'span',
            { class: 'preview' },
            sample.tools.map((tool) => tool.function?.name ?? tool.name ?? '?').join(', '),
          ),
        ],
        () =>
          sample.tools.map((tool) =>
            h(
              'div',
              null,
              h('strong', null, tool.function?.name ?? tool.name ?? 'tool'),
              h('p', { class: 'small muted' }, visible(tool.function?.description ?? tool.description ?? '')),
              longText(
                JSON.stringify(tool.function?.parameters ?? tool.parameters ?? tool.input_schema ?? tool, null, 2),
                'code',
              ),
            ),
          ),
      )
    : null;
  return h(
    'div',
    { class: 'turns' },
    tools,
    chosen.turns.map((at, place) => turnElement(sample.turns[at], place, { names, onCall })),
    chosen.error
      ? h('div', { class: 'notice bad-box', role: 'note' }, 'The last call failed: ', visible(chosen.error))
      : null,
  );
}
