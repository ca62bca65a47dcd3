// Search in a static copy: which rollouts have which words is in files beside it, of which a search reads one for each
// word. `osmosis-view`'s `export/word_index.rs` writes them.

import { ApiError, data } from '../api.js';
import { rowTexts } from './rollout_table.js';

/** @typedef {import('../types').RolloutGrid} RolloutGrid */
/** @typedef {{ rollouts: [number, number][], searched: number, finished: number }} Found */

/** As many files as the export has at most. */
const FILES = 64;
/** Characters of a word that count. */
const WORD = 40;

/** @type {Map<string, Promise<any>>} */
const files = new Map();

/** A file of the index; none means that no word is in it. @param {string} path @returns {Promise<any>} */
function file(path) {
  const known =
    files.get(path) ??
    data(path).catch((error) => {
      if (error instanceof ApiError && error.status === 404) return {};
      files.delete(path);
      throw error;
    });
  files.set(path, known);
  return known;
}

/** @param {string} text */
export function wordsOf(text) {
  return text
    .toLowerCase()
    .split(/[^\p{Alphabetic}\p{N}]+/u)
    .filter(Boolean)
    .map((word) => [...word].slice(0, WORD).join(''));
}

/** Places are written as the distance from the one before. @param {number[]} steps @returns {number[]} */
function places(steps) {
  let at = 0;
  return steps.map((step) => (at += step));
}

/** The places of rollouts that have a word, or one that begins like it. @param {string} at @param {string} word @param {boolean} beginning */
async function having(at, word, beginning) {
  const inFile = await file(`${at}/words/${(word.codePointAt(0) ?? 0) % FILES}`);
  /** @type {Set<number>} */
  const found = new Set();
  if (!beginning) return new Set(places(inFile[word] ?? []));
  for (const [other, steps] of Object.entries(inFile))
    if (other.startsWith(word)) for (const place of places(steps)) found.add(place);
  return found;
}

/**
 * What the viewer's `matches` would answer, except that words may stand apart.
 * @param {string} at
 * @param {{ q: string, tool: string, row: string }} wanted
 * @param {RolloutGrid} grid
 * @returns {Promise<Found[]>}
 */
export async function searchExport(at, wanted, grid) {
  const total = grid.row_index.length;
  const answer = (/** @type {Iterable<number>} */ found) => ({
    rollouts: [...found].map(
      (place) => /** @type {[number, number]} */ ([grid.row_index[place], grid.run_index[place]]),
    ),
    searched: total,
    finished: total,
  });
  /** @type {Found[]} */
  const all = [];
  const words = wordsOf(wanted.q);
  if (words.length) {
    const sets = await Promise.all(words.map((word, i) => having(at, word, i === words.length - 1)));
    all.push(answer(sets.reduce((left, set) => new Set([...left].filter((place) => set.has(place))))));
  } else if (wanted.q) all.push(answer([]));
  if (wanted.tool) {
    const tools = await file(`${at}/tools`);
    all.push(answer(places(tools[wanted.tool] ?? [])));
  }
  if (wanted.row) {
    const rows = await rowTexts(at, [...new Set(grid.row_index)]);
    const text = wanted.row.toLowerCase();
    const found = new Set(rows.filter((row) => row.text.toLowerCase().includes(text)).map((row) => row.row_index));
    all.push(answer([...grid.row_index.keys()].filter((place) => found.has(grid.row_index[place]))));
  }
  return all;
}
