// Curves: several over each other, with intervals, a value under the pointer, and a zoom by dragging.

import { h, s, tip } from '../dom.js';
import { number } from '../format.js';

/** @typedef {import('../types').Series} Series */

const HEIGHT = 190;
const PAD = { left: 46, right: 12, top: 10, bottom: 24 };
export const PALETTE = ['#0f8a74', '#d0702a', '#4d6fd0', '#9a58b5', '#b08a12', '#c2445f', '#3c8fb0', '#6d7f2e'];

/** Round numbers between two others. @param {number} low @param {number} high @param {number} wanted */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(+at.toPrecision(10));
  return found;
}

/**
 * @param {string} title
 * @param {Series[]} series
 * @param {{ zoom: { from: number | null, to: number | null }, onZoom: (from: number | null, to: number | null) => void, onPick?: (x: number) => void, show?: (y: number) => string, mark?: { x: number, text: string } | null, unit?: string, floor?: number }} options
 */
export function chart(title, series, options) {
  const show = options.show ?? ((/** @type {number} */ y) => number(y, 4));
  const box = h('div', { class: 'chart', tabindex: '0', role: 'img' });
  let width = 0;
  /** @type {number[]} */
  let xs = [];
  let at = -1;

  function draw() {
    width = box.clientWidth || 400;
    const points = series.flatMap(({ points }) => points).filter(({ y }) => y !== null);
    xs = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
    const from = options.zoom.from ?? xs[0] ?? 0;
    let to = options.zoom.to ?? xs[xs.length - 1] ?? 1;
    if (to === from) to = from + 1;
    const within = points.filter(({ x }) => x >= from && x <= to);
    let low = Math.min(...within.map((p) => p.low ?? /** @type {number} */ (p.y)));
    let high = Math.max(...within.map((p) => p.high ?? /** @type {number} */ (p.y)));
    if (!within.length) [low, high] = [0, 1];
    if (options.floor !== undefined) low = Math.min(low, options.floor);
    if (low === 0 && high === 0) high = 1;
    if (low === high) [low, high] = [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)];
    const margin = (high - low) * 0.06;
    [low, high] = [options.floor === low ? low : low - margin, high + margin];
    const X = (/** @type {number} */ x) => PAD.left + ((x - from) / (to - from)) * (width - PAD.left - PAD.right);
    const Y = (/** @type {number} */ y) =>
      HEIGHT - PAD.bottom - ((y - low) / (high - low)) * (HEIGHT - PAD.top - PAD.bottom);
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    const drawn = s(
      'svg',
      { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, 'aria-hidden': 'true' },
      s(
        'clipPath',
        { id: clip },
        s('rect', { x: PAD.left, y: 0, width: Math.max(1, width - PAD.left - PAD.right), height: HEIGHT }),
      ),
      ticks(low, high, 4)
        .map((y) => [
          s('line', { class: 'axis', x1: PAD.left, x2: width - PAD.right, y1: Y(y), y2: Y(y) }),
          s('text', { x: PAD.left - 7, y: Y(y) + 4, 'text-anchor': 'end' }, show(y)),
        ])
        .flat(),
      ticks(from, to, Math.max(2, Math.min(8, width / 80)))
        .filter(Number.isInteger)
        .map((x) => s('text', { x: X(x), y: HEIGHT - 7, 'text-anchor': 'middle' }, String(x))),
    );
    const inside = s('g', { 'clip-path': `url(#${clip})` });
    if (options.mark)
      inside.append(
        s('line', {
          class: 'mark',
          x1: X(options.mark.x),
          x2: X(options.mark.x),
          y1: PAD.top,
          y2: HEIGHT - PAD.bottom,
        }),
        s(
          'text',
          {
            x: X(options.mark.x) + (X(options.mark.x) > width - 60 ? -4 : 4),
            y: PAD.top + 9,
            'text-anchor': X(options.mark.x) > width - 60 ? 'end' : 'start',
          },
          options.mark.text,
        ),
      );
    for (const { points, color, dashed } of series) {
      const there = points.filter(({ y }) => y !== null);
      const bounded = there.filter(
        ({ low: l, high: u }) => l !== null && l !== undefined && u !== null && u !== undefined,
      );
      if (bounded.length > 1) {
        const up = bounded.map((p) => `${X(p.x)},${Y(/** @type {number} */ (p.high))}`);
        const back = [...bounded].reverse().map((p) => `${X(p.x)},${Y(/** @type {number} */ (p.low))}`);
        inside.append(s('polygon', { class: 'band', points: [...up, ...back].join(' '), fill: color }));
      }
      inside.append(
        s('path', {
          class: dashed ? 'line dashed' : 'line',
          stroke: color,
          d: there
            .map((p, i) => `${i ? 'L' : 'M'}${X(p.x).toFixed(1)} ${Y(/** @type {number} */ (p.y)).toFixed(1)}`)
            .join(''),
        }),
      );
      if (there.length < 40)
        for (const p of there)
          inside.append(
            s('circle', {
              cx: X(p.x),
              cy: Y(/** @type {number} */ (p.y)),
              r: there.length === 1 ? 3.5 : 2.2,
              fill: color,
            }),
          );
    }
    const cross = s('line', {
      class: 'cross',
      visibility: 'hidden',
      y1: PAD.top,
      y2: HEIGHT - PAD.bottom,
      x1: -9,
      x2: -9,
    });
    const brush = s('rect', { class: 'brush', y: PAD.top, height: HEIGHT - PAD.top - PAD.bottom, x: 0, width: 0 });
    drawn.append(inside, cross, brush);
    box.replaceChildren(drawn);
    const last = series.map(({ name, points: all }) => {
      const end = [...all].reverse().find(({ y }) => y !== null);
      return end ? `${name}: ${show(/** @type {number} */ (end.y))} at ${end.x}` : '';
    });
    box.setAttribute('aria-label', `${title}. Last values: ${last.filter(Boolean).join('; ') || 'none'}`);
    return { X, from, to, cross, brush };
  }

  let drawn = draw();
  /** @param {number} clientX */
  const xAt = (clientX) => {
    const left = box.getBoundingClientRect().left;
    return drawn.from + ((clientX - left - PAD.left) / (width - PAD.left - PAD.right)) * (drawn.to - drawn.from);
  };
  /** @param {number} x */
  const nearest = (x) => xs.reduce((best, other) => (Math.abs(other - x) < Math.abs(best - x) ? other : best), xs[0]);
  /** @param {number} x */
  const describe = (x) =>
    [
      `${options.unit ?? 'step'} ${x}`,
      ...series
        .map(({ name, points }) => {
          const point = points.find((p) => p.x === x);
          if (!point || point.y === null) return null;
          const interval =
            point.low !== null && point.low !== undefined
              ? ` (${show(point.low)} – ${show(/** @type {number} */ (point.high))})`
              : '';
          return `${name}: ${show(point.y)}${interval}`;
        })
        .filter(Boolean),
    ].join('\n');
  /** @param {number} x @param {number} clientX @param {number} clientY */
  const point = (x, clientX, clientY) => {
    drawn.cross.setAttribute('x1', String(drawn.X(x)));
    drawn.cross.setAttribute('x2', String(drawn.X(x)));
    drawn.cross.setAttribute('visibility', 'visible');
    tip(describe(x), clientX, clientY);
  };
  /** @type {number | null} */
  let began = null;
  box.addEventListener('pointerdown', (event) => {
    began = event.clientX;
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener('pointermove', (event) => {
    if (!xs.length) return;
    if (began !== null && Math.abs(event.clientX - began) > 4) {
      const left = box.getBoundingClientRect().left;
      drawn.brush.setAttribute('x', String(Math.min(began, event.clientX) - left));
      drawn.brush.setAttribute('width', String(Math.abs(event.clientX - began)));
    }
    point(nearest(xAt(event.clientX)), event.clientX, event.clientY);
  });
  box.addEventListener('pointerleave', () => {
    tip(null);
    drawn.cross.setAttribute('visibility', 'hidden');
  });
  box.addEventListener('pointerup', (event) => {
    const start = began;
    began = null;
    if (start === null || !xs.length) return;
    if (Math.abs(event.clientX - start) < 5) options.onPick?.(nearest(xAt(event.clientX)));
    else {
      const [one, other] = [xAt(start), xAt(event.clientX)].sort((a, b) => a - b);
      options.onZoom(Math.floor(one), Math.ceil(other));
    }
  });
  box.addEventListener('dblclick', () => options.onZoom(null, null));
  box.addEventListener('keydown', (event) => {
    if (!['ArrowLeft', 'ArrowRight', 'Enter', '0'].includes(event.key) || !xs.length) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === '0') return options.onZoom(null, null);
    if (event.key === 'Enter') return options.onPick?.(xs[Math.max(0, at)]);
    at = Math.max(0, Math.min(xs.length - 1, at + (event.key === 'ArrowRight' ? 1 : -1)));
    const around = box.getBoundingClientRect();
    point(xs[at], around.left + drawn.X(xs[at]), around.top + 20);
    box.setAttribute('aria-label', `${title}. ${describe(xs[at]).replaceAll('\n', ', ')}`);
  });
  box.addEventListener('blur', () => tip(null));
  const sizes = new ResizeObserver(() => {
    if (box.clientWidth && box.clientWidth !== width) drawn = draw();
  });
  sizes.observe(box);
  return {
    element: h('figure', null, h('figcaption', { class: 'card-head' }, h('h2', { class: 'small-title' }, title)), box),
    redraw: () => {
      drawn = draw();
    },
  };
}

/** What the colours of curves mean. @param {{ name: string, color: string, dashed?: boolean }[]} series */
export function legend(series) {
  return h(
    'div',
    { class: 'legend' },
    series.map(({ name, color, dashed }) =>
      h('span', null, h('span', { class: 'dot', style: { background: color, opacity: dashed ? 0.55 : 1 } }), name),
    ),
  );
}
