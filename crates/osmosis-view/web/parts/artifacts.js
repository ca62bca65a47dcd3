// Files that an agent left.

import { isExport } from '../address.js';
import { address } from '../api.js';
import { h } from '../dom.js';
import { bytes, count } from '../format.js';
import { copyButton } from './bits.js';
import { visible } from './text.js';

/** Larger files are not in a static copy (`export/mod.rs`). */
const MOST_EXPORTED = 16 * 1024 * 1024;

/** @typedef {{ path: string, kind: string, bytes: number }} Artifact */

/**
 * @param {string} at The rollout's path in the API.
 * @param {{ items: Artifact[], total_count: number, folder: string }} found
 */
export function artifacts(at, { items, total_count: total, folder }) {
  if (!total) return h('p', { class: 'muted' }, 'None. Files that an agent writes to `ctx.artifacts_dir` appear here.');
  const isPicture = (/** @type {Artifact} */ item) => /\.(png|jpe?g|gif|webp)$/i.test(item.path);
  const addressOf = (/** @type {Artifact} */ item) => {
    const path = address(`${at}/artifacts/${item.path.split('/').map(encodeURIComponent).join('/')}`);
    // Pictures keep their names in a static copy: a browser goes by them.
    return isExport() && isPicture(item) ? path.replace(/\.txt$/, '') : path;
  };
  const note = (/** @type {string} */ text) => h('span', { class: 'small muted' }, ` ${text}`);
  return h(
    'div',
    { class: 'stack' },
    h(
      'ul',
      { class: 'tree' },
      items.map((item) => {
        if (item.kind !== 'file')
          return h(
            'li',
            null,
            h('code', null, visible(item.path)),
            item.kind === 'link' ? note('a link, not followed') : null,
          );
        const here = !isExport() || item.bytes <= MOST_EXPORTED;
        return h(
          'li',
          null,
          here
            ? h('a', { href: addressOf(item), download: item.path.split('/').pop() }, visible(item.path))
            : h('code', null, visible(item.path)),
          note(here ? bytes(item.bytes) : `${bytes(item.bytes)}, too large for this copy`),
          here && isPicture(item) ? h('img', { src: addressOf(item), alt: item.path, loading: 'lazy' }) : null,
        );
      }),
    ),
    total > items.length
      ? h(
          'p',
          { class: 'small muted' },
          isExport()
            ? `${count(total - items.length)} more files are not in this copy`
            : `${count(total - items.length)} more in ${folder}`,
        )
      : null,
    isExport() ? null : copyButton(() => folder, 'Copy the path'),
  );
}
