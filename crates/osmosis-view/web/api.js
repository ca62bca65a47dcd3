// The documents: from the viewer's API, or from the files of an export.

import { isExport } from './address.js';

export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} [hint] */
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/** The file of an export that holds a document. @param {string} path */
function fileOf(path) {
  const parts = path.split('/').map((part) => {
    const bytes = new TextEncoder().encode(decodeURIComponent(part));
    let name = '';
    for (const byte of bytes) {
      const char = String.fromCharCode(byte);
      name += /[A-Za-z0-9._-]/.test(char) ? char : `_${byte.toString(16).padStart(2, '0')}`;
    }
    return name;
  });
  return `data/${parts.join('/')}`;
}

/** @param {string} path @param {Record<string, string>} [query] @param {AbortSignal} [signal] */
async function request(path, query, signal) {
  let address;
  if (isExport()) address = `${fileOf(query?.runs ? `${path}/${encodeURIComponent(query.runs)}` : path)}.json`;
  else address = `/api/v1/${path}${query ? `?${new URLSearchParams(query)}` : ''}`;
  let answer;
  try {
    answer = await fetch(address, { signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(
      0,
      'The viewer does not answer.',
      'Is `osmosis view` still running? Start it again, and open the address it prints.',
    );
  }
  if (answer.ok) return answer;
  let message = `The answer has status ${answer.status}.`;
  let hint;
  try {
    const { error } = await answer.json();
    message = error.message;
    hint = error.details?.hint;
  } catch {
    // Not one of ours: an export on a server that has no such file.
    if (answer.status === 404 && isExport()) message = 'This is not part of the export.';
  }
  throw new ApiError(answer.status, message, hint);
}

/** The `data` of a document. @param {string} path @param {Record<string, string>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function data(path, query, signal) {
  return (await (await request(path, query, signal)).json()).data;
}

/** A list: `{items, total_count, next}`. @param {string} path @param {Record<string, string>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function list(path, query, signal) {
  return (await request(path, query, signal)).json();
}

/** The exact bytes of a call. @param {string} path */
export async function raw(path) {
  if (!isExport()) return (await request(path)).arrayBuffer();
  const answer = await fetch(`${fileOf(path)}.txt`);
  if (!answer.ok) throw new ApiError(answer.status, 'This is not part of the export.');
  return answer.arrayBuffer();
}

/** Where a browser finds it. @param {string} path */
export function address(path) {
  return isExport() ? `${fileOf(path)}.txt` : `/api/v1/${path}`;
}

/** The event of the page when the viewer has ended. */
export const ENDED = 'osmosis:ended';

/**
 * Calls back when something has changed; returns what ends it. When the viewer ends, `last` may read the state that stays.
 * @param {string} path
 * @param {string} event
 * @param {(data: any) => void} listener
 * @param {() => Promise<void>} [last]
 */
export function subscribe(path, event, listener, last) {
  if (isExport()) return () => {};
  const source = new EventSource(`/api/v1/${path}`);
  source.addEventListener(event, (message) => listener(JSON.parse(message.data)));
  source.addEventListener('end', async (message) => {
    if (JSON.parse(message.data).last_look) await last?.();
    // Or else the browser would try to connect for ever.
    source.close();
    dispatchEvent(new Event(ENDED));
  });
  return () => source.close();
}
