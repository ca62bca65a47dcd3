// The token lens: what the policy saw and sampled, token by token.

import { go, here, link, note, part, rolloutPath, runPath } from '../address.js';
import { data } from '../api.js';
import { fill, h, tip } from '../dom.js';
import { count, number, percent, plural } from '../format.js';
import { card, copyButton, segmented } from '../parts/bits.js';
import { LensText } from '../parts/lens_text.js';

/** @typedef {import('../types').RolloutTokens} RolloutTokens */
/** @typedef {import('../types').SampleTokens} SampleTokens */

/** @param {string[]} names @param {AbortSignal} signal @returns {Promise<import('../types').Shown>} */
export async function tokensPage([run, id], signal) {
  const at = `runs/${part(run)}/rollouts/${part(id)}`;
  /** @type {RolloutTokens} */
  const tokens = await data(`${at}/tokens`, undefined, signal);
  const [row, index] = id.split('.').map(Number);
  const back = link(rolloutPath(run, row, index));
  const crumbs = [
    { text: 'Runs', href: link('/') },
    { text: run, href: link(runPath(run)) },
    { text: id, href: back },
    { text: 'Tokens' },
  ];
  const keys = [
    { keys: ['u'], does: 'back to the rollout', run: () => go(back) },
    {
      keys: ['1', '2', '3', '4'],
      does: 'colour by logprob, advantage, version, mask',
      run: (/** @type {KeyboardEvent} */ event) =>
        /** @type {HTMLElement | null} */ (
          document.querySelectorAll('.lens-modes button')[Number(event.key) - 1]
        )?.click(),
    },
  ];
  const title = h(
    'div',
    { class: 'page-head' },
    h('div', { class: 'titles' }, h('h1', null, `Tokens of ${id}`)),
    h(
      'div',
      { class: 'actions' },
      h('a', { class: 'btn', href: back }, 'Transcript'),
      h('a', { class: 'btn', href: link(`${runPath(run)}/rows/${row}`) }, `Rollouts of row ${row}`),
    ),
  );
  if (tokens.none_because) {
    return {
      title: `Tokens of ${id}`,
      crumbs,
      keys,
      content: [
        title,
        h(
          'div',
          { class: 'empty' },
          h('p', null, `No token ids: ${tokens.none_because}.`),
          h(
            'p',
            null,
            'Token ids are recorded of embedded models and of servers that report them (docs/gateway-tokens.md).',
          ),
        ),
      ],
    };
  }
  const { query } = here();
  const state = {
    sample: query.get('sample') ?? tokens.samples[0].sample_id,
    path: Number(query.get('path') ?? 0),
    mode: query.get('by') ?? 'logprob',
  };
  const area = h('div');
  const legend = h('div', { class: 'scale-bar' });
  const facts = h('div');
  /** @type {LensText | null} */
  let lens = null;

  function draw() {
    lens?.end();
    const sample = tokens.samples.find(({ sample_id: name }) => name === state.sample) ?? tokens.samples[0];
    const paths = sample.paths.length
      ? sample.paths
      : [{ id: `${sample.sample_id}/0`, calls: sample.calls.map(({ call }) => call) }];
    const path = paths[Math.min(state.path, paths.length - 1)];
    lens = new LensText(tokens, sample, path.calls);
    lens.color(state.mode);
    fill(area, lens.element);
    drawLegend(lens);
    drawFacts(sample, lens);
  }

  /** @param {LensText} of */
  function drawLegend(of) {
    const ramp = (/** @type {string} */ name, /** @type {number} */ steps) =>
      h(
        'span',
        { class: 'ramp', 'aria-hidden': 'true' },
        Array.from({ length: steps }, (_, i) => h('i', { class: `${name}${i}` })),
      );
    if (state.mode === 'logprob')
      fill(legend, 'certain', ramp('l', 10), 'surprising', h('span', null, 'logprob 0 to −5; prompt tokens are grey'));
    else if (state.mode === 'advantage')
      fill(
        legend,
        of.advantage === null
          ? `no advantage: ${of.sample.without_advantage ?? 'its group was left out'}`
          : [
              number(-of.most),
              ramp('a', 11),
              number(of.most),
              h(
                'span',
                null,
                `this sample: ${of.sample.advantages.map((a) => number(a)).join(', ')}${tokens.group_use === 'hypothetical' ? ' (what GRPO would give)' : ''}`,
              ),
            ],
      );
    else if (state.mode === 'version')
      fill(
        legend,
        of.versions.map((version, i) =>
          h(
            'span',
            null,
            h('i', { class: `v${i % 8}`, style: { display: 'inline-block', width: '13px', height: '13px' } }),
            ` version ${version}`,
          ),
        ),
      );
    else
      fill(
        legend,
        h('i', { class: 'm0', style: { display: 'inline-block', width: '13px', height: '13px' } }),
        ' trained on',
        h('i', { class: 'm1', style: { display: 'inline-block', width: '13px', height: '13px' } }),
        ' sampled, masked (struck out)',
        h('span', null, 'prompt tokens are grey and never trained on'),
      );
  }

  /** @param {SampleTokens} sample @param {LensText} of */
  function drawFacts(sample, of) {
    const { sampled, mean, lowest } = of.numbers();
    fill(
      facts,
      h(
        'dl',
        { class: 'kv' },
        h('dt', null, 'tokens'),
        h(
          'dd',
          null,
          `${count(of.length)}: ${count(sampled)} sampled (${percent(sampled / Math.max(1, of.length))}), the others are prompt`,
        ),
        h('dt', null, 'mean logprob'),
        h('dd', null, number(mean)),
        h('dt', null, 'most surprising'),
        h(
          'dd',
          null,
          h(
            'button',
            { class: 'btn quiet', type: 'button', onclick: () => of.jump(lowest) },
            lowest < 0 ? '–' : `${JSON.stringify(of.text(lowest))} at ${count(lowest)} (${number(of.logprob(lowest))})`,
          ),
        ),
        h('dt', null, 'turns'),
        h(
          'dd',
          null,
          `${plural(of.calls.length, 'call')} on this path, ${plural(sample.calls.length, 'call')} in the sample`,
        ),
        tokens.group_prefix !== null
          ? [
              h('dt', null, 'common prefix'),
              h(
                'dd',
                null,
                h(
                  'button',
                  {
                    class: 'btn quiet',
                    type: 'button',
                    onclick: () => of.jump(/** @type {number} */ (tokens.group_prefix)),
                  },
                  `the rollouts of this row are alike for ${plural(tokens.group_prefix, 'token')}`,
                ),
              ),
            ]
          : null,
      ),
    );
  }

  const modes = segmented(
    'Colour',
    [
      ['logprob', 'Logprob'],
      ['advantage', 'Advantage'],
      ['version', 'Policy version'],
      ['mask', 'Loss mask'],
    ],
    state.mode,
    (mode) => {
      state.mode = mode;
      note({ by: mode === 'logprob' ? '' : mode });
      lens?.color(mode);
      if (lens) drawLegend(lens);
    },
  );
  modes.classList.add('lens-modes');
  const samples =
    tokens.samples.length > 1
      ? h(
          'select',
          {
            'aria-label': 'Sample',
            onchange: () => {
              state.sample = samples?.value ?? '';
              state.path = 0;
              note({ sample: state.sample, path: '' });
              draw();
              drawPaths();
            },
          },
          tokens.samples.map(({ sample_id: name }) =>
            h('option', { value: name, selected: name === state.sample }, name),
          ),
        )
      : null;
  const branches = h('span');
  function drawPaths() {
    const sample = tokens.samples.find(({ sample_id: name }) => name === state.sample) ?? tokens.samples[0];
    if (sample.paths.length < 2) return fill(branches);
    const select = h(
      'select',
      {
        'aria-label': 'Branch',
        onchange: () => {
          state.path = Number(select.value);
          note({ path: state.path ? String(state.path) : '' });
          draw();
        },
      },
      sample.paths.map((path, i) =>
        h('option', { value: i, selected: i === state.path }, `${path.id}, ${plural(path.calls.length, 'call')}`),
      ),
    );
    fill(branches, select);
  }
  drawPaths();
  draw();
  return {
    title: `Tokens of ${id}`,
    crumbs,
    keys,
    content: h(
      'div',
      { class: 'stack' },
      title,
      card('Lens', [
        h(
          'div',
          { class: 'toolbar' },
          modes,
          samples,
          branches,
          h('span', { class: 'grow' }),
          copyButton(() => lens?.ids() ?? '', 'Copy ids'),
        ),
        legend,
        facts,
      ]),
      area,
    ),
    entered: () => lens?.entered(),
    leave: () => {
      lens?.end();
      tip(null);
    },
  };
}
