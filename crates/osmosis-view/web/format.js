// Numbers, times and words as people write them.

const NONE = '–';

/** @param {number | null | undefined} value */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return String(+value.toFixed(digits));
}

/** @param {number | null | undefined} share */
export function percent(share) {
  return share === null || share === undefined ? NONE : `${(100 * share).toFixed(1)}%`;
}

/** @param {number | null | undefined} count */
export function count(count) {
  return count === null || count === undefined ? NONE : count.toLocaleString('en-US');
}

/** `1.2M`, for places where digits do not matter. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1000) return String(value);
  const units = ['k', 'M', 'G', 'T'];
  let unit = -1;
  do {
    value /= 1000;
    unit += 1;
  } while (value >= 999.5 && unit < units.length - 1);
  return `${value < 10 ? value.toFixed(1) : value.toFixed(0)}${units[unit]}`;
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NONE;
  if (ms < 1) return '<1 ms';
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 90) return `${minutes} m ${Math.round(seconds - 60 * minutes)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes - 60 * hours} m` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** @param {number | null | undefined} dollars */
export function money(dollars) {
  if (dollars === null || dollars === undefined) return NONE;
  return dollars < 0.01 && dollars > 0 ? `$${dollars.toPrecision(2)}` : `$${dollars.toFixed(2)}`;
}

/** @param {number} bytes */
export function bytes(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** How long ago. @param {number} ms */
export function ago(ms) {
  const seconds = (Date.now() - ms) / 1000;
  if (seconds < 45) return 'just now';
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** @param {number | null | undefined} ms */
export function time(ms) {
  return ms === null || ms === undefined
    ? NONE
    : new Date(ms)
        .toISOString()
        .replace('T', ' ')
        .replace(/\.\d+Z/, 'Z');
}

/** @param {[number, number] | null | undefined} interval @param {(value: number) => string} show */
export function interval(interval, show) {
  return interval ? `${show(interval[0])} – ${show(interval[1])}` : '';
}

/** `agent failed`. @param {string} word */
export function words(word) {
  return word.replaceAll('_', ' ');
}

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString('en-US')} ${count === 1 ? one : many}`;
}

/** @param {number} value */
export function signed(value, digits = 3) {
  return `${value > 0 ? '+' : ''}${number(value, digits)}`;
}
