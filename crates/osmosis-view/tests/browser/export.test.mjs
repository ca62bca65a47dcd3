import assert from 'node:assert/strict';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { endAll, exportRuns, make, newPage, serveFiles, workspace } from './support.mjs';

after(endAll);

function* files(folder) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) yield* files(path);
    else yield path;
  }
}

test('an export of two runs opens from a plain web server, with every page', async () => {
  const folder = workspace();
  make(folder, 'every-outcome', 'alpha');
  make(folder, 'every-outcome', 'beta');
  const site = join(folder, 'site');
  const written = exportRuns(folder, site, 'alpha', 'beta');
  assert.equal(written.rollouts, 80);
  const origin = await serveFiles(folder);
  const page = await newPage();
  const go = async (hash, wait) => {
    await page.goto('about:blank');
    await page.goto(`${origin}/site/index.html#${hash}`);
    await page.waitForSelector('main:not([aria-busy])');
    await page.waitForSelector(wait);
  };
  await go('/', 'text=Exported runs');
  await page.click('a:text-is("alpha")');
  await page.waitForSelector('text=40 rollouts in 10 rows');
  assert.ok(page.url().endsWith('#/runs/alpha'), page.url());
  await go('/runs/alpha/rollouts/2.2', '.turn');
  await page.locator('.turn.assistant button', { hasText: 'raw' }).first().click();
  await page.waitForSelector('dialog pre >> text=messages');
  await go('/runs/alpha/rollouts/0.0/tokens', '.lens t');
  await go('/runs/alpha/rows/0', '.columns .turn');
  await go('/compare/alpha,beta', '.verdict');
  await go('/runs/alpha?row=3%20times', 'text=4 of 40 rollouts');
  // Words in any order, the last of them begun; a tool; nothing that was redacted.
  await go('/runs/alpha?q=MULTIPLY%20too', 'text=/^[1-9] of 40 rollouts/');
  await go('/runs/alpha?tool=multiply', 'text=/^[1-9] of 40 rollouts/');
  await go('/runs/alpha?q=hunter2', 'text=No rollout matches');
  assert.ok(
    page.requested.every((url) => url.startsWith(`${origin}/site/`) || url.startsWith('about:')),
    page.requested.join('\n'),
  );
  assert.deepEqual(page.problems, []);
});

test('an export has no secret, no key and no path of this machine', async () => {
  const folder = workspace();
  make(folder, 'every-outcome', 'alpha');
  const site = join(folder, 'site');
  exportRuns(folder, site, 'alpha');
  let count = 0;
  for (const path of files(join(site, 'data'))) {
    const text = readFileSync(path, 'latin1');
    count += 1;
    for (const secret of ['hunter2-hunter2', folder]) assert.ok(!text.includes(secret), `${path} has ${secret}`);
  }
  assert.ok(count > 100);
  const said = readFileSync(join(site, 'data/runs/alpha/rollouts/2.2/transcript.json'), 'utf8');
  assert.ok(said.includes('the key is [redacted].'), said);
});
