import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { endAll, make, makeLive, open, view, workspace } from './support.mjs';

after(endAll);

test('a running evaluation changes its list, its page and its rollouts without a reload', async () => {
  const folder = workspace();
  make(folder, 'every-outcome', 'before');
  const viewer = await view(folder);
  const page = await open(viewer);
  await page.waitForSelector('text=before');
  const run = await makeLive(folder, 'live', 'now');
  // A new run is there within 15 s.
  await page.waitForSelector('tr[data-run="now"] >> text=running', { timeout: 15_000 });
  await page.click('a:text-is("now")');
  await page.waitForSelector('text=32 rollouts in 8 rows');
  const done = () => page.locator('.number', { hasText: 'rollouts' }).first().innerText();
  assert.match(await done(), /\n0\n/);
  await run.go();
  await run.go();
  await page.waitForFunction(
    () =>
      [...document.querySelectorAll('.number')].some(
        (box) => /rollouts/.test(box.textContent) && /2of 32/.test(box.textContent),
      ),
    undefined,
    { timeout: 10_000 },
  );
  await page.goto(`${viewer.origin}/runs/now/rollouts/0.2`);
  await page.waitForSelector('text=Nothing was said yet');
  await run.go();
  await page.waitForSelector('.turn.assistant', { timeout: 10_000 });
  await page.goto(`${viewer.origin}/`);
  await run.end();
  await page.waitForSelector('tr[data-run="now"] >> text=finished', { timeout: 15_000 });
  assert.deepEqual(page.problems, []);
});

test('a running training adds a point to its curves with each step', async () => {
  const folder = workspace();
  const run = await makeLive(folder, 'live-training', 'learner');
  const viewer = await view(folder, 'learner');
  const page = await open(viewer);
  await page.waitForSelector('figcaption >> text=Reward in training');
  const label = () => page.locator('.chart').first().getAttribute('aria-label');
  assert.match(await label(), /at 1/);
  await run.go();
  await run.go();
  await page.waitForFunction(
    () =>
      [...document.querySelectorAll('.chart')].some((chart) => / at 3/.test(chart.getAttribute('aria-label') ?? '')),
    undefined,
    { timeout: 15_000 },
  );
  await run.end();
  assert.deepEqual(page.problems, []);
});
