// The grid: a line for each dataset row, a cell for each rollout, drawn on a canvas that is as large as the window
// onto it. What is drawn does not depend on how many rollouts there are.

import { announce, h, tip } from '../dom.js';
import { duration, number, short, words } from '../format.js';

/** @typedef {import('../types').RolloutGrid} RolloutGrid */
/** @typedef {{ row: number, places: Int32Array }} Line */

const LINE = 20;
const LABEL = 62;

/** From orange (worst) over sand to teal (best): told apart by eyes that confuse red and green. */
const RAMP_LIGHT = [
  [196, 78, 32],
  [236, 160, 98],
  [240, 224, 196],
  [128, 196, 186],
  [14, 118, 104],
];
const RAMP_DARK = [
  [226, 104, 52],
  [190, 122, 74],
  [104, 98, 88],
  [56, 132, 122],
  [64, 204, 178],
];

/** @param {number} share @param {boolean} dark */
export function rewardColor(share, dark) {
  const ramp = dark ? RAMP_DARK : RAMP_LIGHT;
  const at = Math.max(0, Math.min(1, share)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(at));
  const [a, b, t] = [ramp[low], ramp[low + 1], at - low];
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * t)).join(',')})`;
}

/** The rewards that the ends of the scale stand for. @param {RolloutGrid} grid @returns {[number, number]} */
export function rewardRange(grid) {
  let low = Infinity;
  let high = -Infinity;
  for (const reward of grid.reward) {
    if (reward === null) continue;
    if (reward < low) low = reward;
    if (reward > high) high = reward;
  }
  if (low > high) return [0, 1];
  return low >= 0 && high <= 1 ? [0, 1] : [low, high === low ? low + 1 : high];
}

/**
 * @param {{ open: (place: number) => void, rowTexts: (rows: number[]) => Promise<Map<number, string>>, openRow: (row: number) => void }} actions
 */
export function rolloutGrid(actions) {
  const canvas = h('canvas', { class: 'cells', 'aria-hidden': 'true' });
  const spacer = h('div', { class: 'spacer' });
  const scroller = h(
    'div',
    {
      class: 'scroller',
      tabindex: '0',
      role: 'application',
      'aria-roledescription': 'grid of rollouts',
      'aria-label':
        'Rollouts by dataset row. Arrow keys move, Enter opens. The list view has the same rollouts as a table.',
    },
    canvas,
    spacer,
  );
  const map = h('canvas', { class: 'map', 'aria-hidden': 'true' });
  const element = h('div', { class: 'rollout-grid' }, scroller, map);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  const overview = /** @type {CanvasRenderingContext2D} */ (map.getContext('2d'));

  /** @type {RolloutGrid} */
  let grid;
  /** @type {Line[]} */
  let lines = [];
  /** @type {Map<number, string>} */
  const texts = new Map();
  let color = 'reward';
  /** @type {[number, number]} */
  let range = [0, 1];
  let cell = 16;
  let widest = 1;
  let selected = { line: 0, place: 0 };
  let asked = false;
  const scheme = matchMedia('(prefers-color-scheme: dark)');

  /** @returns {Record<string, string>} */
  function theme() {
    const style = getComputedStyle(document.documentElement);
    /** @type {Record<string, string>} */
    const colors = { text: '--text', muted: '--muted', line: '--line', surface: '--surface', focus: '--focus' };
    for (const [name, variable] of Object.entries(colors)) colors[name] = style.getPropertyValue(variable).trim();
    for (const state of grid.states) colors[state] = style.getPropertyValue(`--s-${state}`).trim();
    return colors;
  }

  let colors = /** @type {Record<string, string>} */ ({});

  /** @param {number} place */
  function colorOf(place) {
    const state = grid.states[grid.state[place]];
    const reward = grid.reward[place];
    if (color === 'reward' && reward !== null)
      return rewardColor((reward - range[0]) / (range[1] - range[0]), scheme.matches);
    return colors[state];
  }

  function measure() {
    const width = scroller.clientWidth;
    const ratio = devicePixelRatio || 1;
    // A small run takes the room it needs, and no map of it.
    const whole = lines.length * LINE + 10;
    element.style.setProperty('--whole', `${whole}px`);
    const height = element.clientHeight;
    element.classList.toggle('small', whole <= height + 2);
    if (!width || !height) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    map.width = Math.round(22 * ratio);
    map.height = Math.round(height * ratio);
    const text = width > 560 ? Math.min(420, width * 0.36) : 0;
    cell = Math.max(3, Math.min(LINE - 2, Math.floor((width - LABEL - text - 14) / Math.max(1, widest))));
    spacer.style.height = `${Math.max(0, lines.length * LINE + 8 - height)}px`;
    colors = theme();
    drawMap();
    draw();
  }

  let pending = false;
  function draw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      paint();
    });
  }

  function paint() {
    if (!grid || !canvas.width) return;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.width / ratio, canvas.height / ratio];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const top = scroller.scrollTop;
    const first = Math.max(0, Math.floor((top - 4) / LINE));
    const last = Math.min(lines.length, Math.ceil((top + height) / LINE));
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = 'middle';
    const gap = cell > 6 ? 2 : 1;
    const missing = [];
    for (let at = first; at < last; at += 1) {
      const { row, places } = lines[at];
      const y = at * LINE - top + 4;
      context.fillStyle = colors.muted;
      context.textAlign = 'right';
      context.fillText(String(row), LABEL - 12, y + LINE / 2 - 1);
      for (let i = 0; i < places.length; i += 1) {
        const x = LABEL + i * cell;
        if (x > width) break;
        context.fillStyle = colorOf(places[i]);
        context.fillRect(x, y, cell - gap, LINE - 3);
        if (color === 'reward' && grid.reward[places[i]] === null && cell > 7)
          mark(grid.states[grid.state[places[i]]], x, y, cell - gap);
        if (at === selected.line && i === selected.place && document.activeElement === scroller) {
          context.strokeStyle = colors.focus;
          context.lineWidth = 2;
          context.strokeRect(x - 1, y - 1, cell - gap + 2, LINE - 1);
        }
      }
      const text = texts.get(row);
      const from = LABEL + Math.max(places.length, Math.min(widest, 12)) * cell + 14;
      if (text === undefined) missing.push(row);
      else if (width - from > 90) {
        context.fillStyle = colors.text;
        context.textAlign = 'left';
        context.fillText(clipped(text, width - from - 10), from, y + LINE / 2 - 1);
      }
    }
    if (missing.length) ask(missing);
  }

  /** What failed is marked, too: colour alone says little to some. @param {string} state @param {number} x @param {number} y @param {number} size */
  function mark(state, x, y, size) {
    if (state === 'waiting' || state === 'running') return;
    context.strokeStyle = colors.surface;
    context.lineWidth = 1.4;
    context.beginPath();
    context.moveTo(x + 4, y + 5);
    context.lineTo(x + size - 4, y + LINE - 8);
    context.moveTo(x + size - 4, y + 5);
    context.lineTo(x + 4, y + LINE - 8);
    context.stroke();
  }

  /** @param {string} text @param {number} width */
  function clipped(text, width) {
    const most = Math.floor(width / 6);
    return text.length > most ? `${text.slice(0, Math.max(0, most - 1))}…` : text;
  }

  /** @param {number[]} rows */
  function ask(rows) {
    if (asked) return;
    asked = true;
    setTimeout(async () => {
      await know(rows);
      asked = false;
      draw();
    }, 40);
  }

  let reading = Promise.resolve();
  /** Reads the texts of rows that are not known yet, after those that are being read. @param {number[]} rows */
  function know(rows) {
    reading = reading.then(() => read(rows));
    return reading;
  }

  /** @param {number[]} all */
  async function read(all) {
    const rows = all.filter((row) => !texts.has(row));
    if (!rows.length) return;
    try {
      for (const [row, text] of await actions.rowTexts(rows)) texts.set(row, text.replace(/\s+/g, ' '));
    } catch {
      // Rows without a text are shown by their number.
    }
    for (const row of rows) if (!texts.has(row)) texts.set(row, '');
  }

  /** All lines at once, a row of pixels for some of them each. */
  function drawMap() {
    const { width, height } = map;
    overview.clearRect(0, 0, width, height);
    if (!lines.length) return;
    const steps = Math.min(height, lines.length);
    for (let step = 0; step < steps; step += 1) {
      const line = lines[Math.floor((step * lines.length) / steps)];
      const share = Math.min(line.places.length, 8);
      for (let i = 0; i < share; i += 1) {
        overview.fillStyle = colorOf(line.places[Math.floor((i * line.places.length) / share)]);
        overview.fillRect((i * width) / share, (step * height) / steps, width / share + 1, height / steps + 1);
      }
    }
  }

  /** @param {PointerEvent | MouseEvent} event @returns {{ line: number, place: number } | null} */
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const line = Math.floor((event.clientY - box.top + scroller.scrollTop - 4) / LINE);
    const place = Math.floor((event.clientX - box.left - LABEL) / cell);
    if (!lines[line] || place >= lines[line].places.length) return lines[line] ? { line, place: -1 } : null;
    return { line, place: Math.max(-1, place) };
  }

  /** @param {number} place */
  function describe(place) {
    const state = grid.states[grid.state[place]];
    const reward = grid.reward[place];
    const lines = [`row ${grid.row_index[place]}, rollout ${grid.run_index[place]}: ${words(state)}`];
    if (reward !== null) lines.push(`reward ${number(reward)}${grid.passed[place] ? ', passed' : ''}`);
    if (grid.duration_ms[place])
      lines.push(
        `${duration(grid.duration_ms[place])}, ${grid.model_calls[place]} model calls, ${short(grid.completion_tokens[place])} tokens`,
      );
    if (grid.held_out[place]) lines.push(grid.held_out[place] === 2 ? 'held out, decoded greedily' : 'held out');
    return lines.join('\n');
  }

  canvas.addEventListener('pointermove', (event) => {
    const at = under(event);
    canvas.style.cursor = at ? 'pointer' : 'default';
    if (at && at.place >= 0) tip(describe(lines[at.line].places[at.place]), event.clientX, event.clientY);
    else if (at)
      tip(
        `row ${lines[at.line].row}: ${(texts.get(lines[at.line].row) ?? '').slice(0, 240)}\nopens all its rollouts side by side`,
        event.clientX,
        event.clientY,
      );
    else tip(null);
  });
  canvas.addEventListener('pointerleave', () => tip(null));
  canvas.addEventListener('click', (event) => {
    const at = under(event);
    if (!at) return;
    if (at.place < 0) actions.openRow(lines[at.line].row);
    else actions.open(lines[at.line].places[at.place]);
  });
  map.addEventListener('pointerdown', (event) => {
    const jump = (/** @type {PointerEvent} */ moved) => {
      const box = map.getBoundingClientRect();
      const share = (moved.clientY - box.top) / box.height;
      scroller.scrollTop = share * lines.length * LINE - element.clientHeight / 2;
    };
    jump(event);
    map.setPointerCapture(event.pointerId);
    map.onpointermove = jump;
    map.onpointerup = () => {
      map.onpointermove = null;
    };
  });
  scroller.addEventListener('scroll', draw, { passive: true });
  scroller.addEventListener('focus', draw);
  scroller.addEventListener('blur', draw);
  scroller.addEventListener('keydown', (event) => {
    if (!lines.length) return;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowDown: [1, 0],
      j: [1, 0],
      ArrowUp: [-1, 0],
      k: [-1, 0],
      ArrowRight: [0, 1],
      l: [0, 1],
      ArrowLeft: [0, -1],
      h: [0, -1],
      PageDown: [30, 0],
      PageUp: [-30, 0],
      Home: [-1e9, 0],
      End: [1e9, 0],
    };
    const line = lines[selected.line];
    if (event.key === 'Enter' && line) actions.open(line.places[selected.place]);
    else if (event.key === 'g' && line) actions.openRow(line.row);
    else if (moves[event.key]) {
      const [down, right] = moves[event.key];
      const next = Math.max(0, Math.min(lines.length - 1, selected.line + down));
      const place = Math.max(0, Math.min(lines[next].places.length - 1, selected.place + right));
      selected = { line: next, place };
      const y = next * LINE;
      if (y < scroller.scrollTop) scroller.scrollTop = y;
      else if (y + LINE * 2 > scroller.scrollTop + element.clientHeight)
        scroller.scrollTop = y + LINE * 2 - element.clientHeight;
      announce(describe(lines[next].places[place]));
      draw();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const sizes = new ResizeObserver(() => measure());
  sizes.observe(element);
  scheme.addEventListener('change', measure);

  return {
    element,
    /** @param {RolloutGrid} of @param {Line[]} shown @param {string} by */
    show(of, shown, by) {
      grid = of;
      lines = shown;
      color = by;
      range = rewardRange(of);
      widest = lines.reduce((most, line) => Math.max(most, line.places.length), 1);
      selected = { line: Math.min(selected.line, Math.max(0, lines.length - 1)), place: 0 };
      measure();
    },
    know,
    end() {
      sizes.disconnect();
      scheme.removeEventListener('change', measure);
    },
  };
}
