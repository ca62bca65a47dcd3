// Which rollouts of a grid are shown, and in which order.

/** @typedef {import('../types').RolloutGrid} RolloutGrid */

/**
 * @typedef {object} Filter
 * @property {Set<string>} outcomes Empty: all. Also `passed`.
 * @property {number | null} min
 * @property {number | null} max
 * @property {Set<string> | null} matching `ROW.RUN` of those that a search found.
 * @property {string} held '', 'train', 'sampled' or 'greedy'
 */

/** The places that a filter takes, in order. @param {RolloutGrid} grid @param {Filter} filter */
export function filtered(grid, filter) {
  const total = grid.row_index.length;
  const taken = new Int32Array(total);
  let count = 0;
  const states = grid.states.map((state) => filter.outcomes.has(state));
  const held = { '': -1, train: 0, sampled: 1, greedy: 2 }[filter.held] ?? -1;
  const passedToo = filter.outcomes.has('passed');
  const failedToo = filter.outcomes.has('not_passed');
  for (let place = 0; place < total; place += 1) {
    if (
      filter.outcomes.size &&
      !states[grid.state[place]] &&
      !(passedToo && grid.passed[place]) &&
      !(failedToo && !grid.passed[place] && grid.state[place] === 2)
    )
      continue;
    const reward = grid.reward[place];
    if (filter.min !== null && (reward === null || reward < filter.min)) continue;
    if (filter.max !== null && (reward === null || reward > filter.max)) continue;
    if (held >= 0 && (grid.held_out[place] ?? 0) !== held) continue;
    if (filter.matching && !filter.matching.has(`${grid.row_index[place]}.${grid.run_index[place]}`)) continue;
    taken[count] = place;
    count += 1;
  }
  return taken.subarray(0, count);
}

/** A line for each dataset row. @param {RolloutGrid} grid @param {Int32Array} places In order of rows. */
export function linesOf(grid, places) {
  /** @type {{ row: number, places: Int32Array }[]} */
  const lines = [];
  let from = 0;
  for (let at = 1; at <= places.length; at += 1) {
    if (at < places.length && grid.row_index[places[at]] === grid.row_index[places[from]]) continue;
    lines.push({ row: grid.row_index[places[from]], places: places.subarray(from, at) });
    from = at;
  }
  return lines;
}

/**
 * Sorts lines by what their rollouts have on average; what has nothing comes last.
 * @param {RolloutGrid} grid
 * @param {{ row: number, places: Int32Array }[]} lines
 * @param {string} sort
 */
export function sorted(grid, lines, sort) {
  const down = sort.startsWith('-');
  const by = sort.replace(/^-/, '');
  if (by === 'row' || !by) return down ? [...lines].reverse() : lines;
  /** @param {Int32Array} places @param {(number | null)[]} column */
  const mean = (places, column) => {
    let sum = 0;
    let count = 0;
    for (const place of places) {
      const value = column[place];
      if (value === null) continue;
      sum += value;
      count += 1;
    }
    return count ? sum / count : null;
  };
  /** @param {Int32Array} places */
  const variance = (places) => {
    const middle = mean(places, grid.reward);
    if (middle === null) return null;
    let sum = 0;
    let count = 0;
    for (const place of places) {
      const value = grid.reward[place];
      if (value === null) continue;
      sum += (value - middle) ** 2;
      count += 1;
    }
    return count > 1 ? sum / count : null;
  };
  const value = (/** @type {{ places: Int32Array }} */ { places }) => {
    if (by === 'reward') return mean(places, grid.reward);
    if (by === 'variance') return variance(places);
    if (by === 'length') return mean(places, grid.completion_tokens);
    return mean(places, grid.duration_ms);
  };
  const keyed = lines.map((line) => ({ line, key: value(line) }));
  keyed.sort((one, other) => {
    if (one.key === null || other.key === null)
      return one.key === other.key ? one.line.row - other.line.row : one.key === null ? 1 : -1;
    return (down ? other.key - one.key : one.key - other.key) || one.line.row - other.line.row;
  });
  return keyed.map(({ line }) => line);
}
