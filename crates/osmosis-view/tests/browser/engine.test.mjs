import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { project, submit } from './engine.mjs';
import { endAll, exportRuns, newPage, open, serveFiles, view } from './support.mjs';

after(endAll);

/** The page that a `--view` printed. It may be there before the run is. */
async function watch(run) {
  const page = await newPage();
  await page.goto(run.url);
  await page.waitForSelector('h1:text-is("now")', { timeout: 30_000 });
  return page;
}

const headline = (page, name, value) =>
  page.waitForFunction(
    ([title, wanted]) =>
      [...document.querySelectorAll('.number')].some(
        (box) => box.querySelector('dt')?.textContent?.startsWith(title) && box.textContent.includes(wanted),
      ),
    [name, value],
    { timeout: 30_000 },
  );

/** What the browser complained about, but for a run that had not begun. */
const problems = (page) => page.problems.filter((text) => !text.includes('404'));

test('`eval submit --view` shows its run live, and the page ends with the whole of it', async () => {
  const { folder, gate } = await project(['one', 'two', 'raise', 'flaky', 'cut', 'write']);
  // The first two rows come first.
  const run = await submit(folder, 'eval', '--max-in-flight', '2');
  const page = await watch(run);
  await page.waitForSelector('.status.running');
  await headline(page, 'rollouts', '0of 6');
  gate.let(2);
  await headline(page, 'rollouts', '2of 6');
  await page.waitForSelector('.status.running');
  gate.let(100);
  assert.equal(await run.ended, 0, run.said.stderr);
  // The server is gone; what the page read last stays.
  await page.waitForSelector('.status.finished');
  await page.waitForSelector('text=6 rollouts in 6 rows');
  await page.waitForSelector('text=This viewer has ended');
  await page.waitForSelector('text=ValueError: row 17 has no unit');
  assert.deepEqual(problems(page), []);
  assert.match(run.said.stdout, /pass rate/i);

  const viewer = await view(folder, 'now');
  const later = await open(viewer, '/runs/now/rollouts/3.0');
  await later.waitForSelector('h2:text-is("Attempts (2)")');
  await later.waitForSelector('.attempts >> text=the model server is starting');
  await later.click('.attempts summary');
  await later.click('.attempts button');
  await later.waitForSelector('dialog >> text=attempt 1');
  await later.waitForSelector('dialog >> text=flaky');
  await later.keyboard.press('Escape');
  await later.goto(`${viewer.origin}/runs/now/rollouts/4.0`);
  await later.waitForSelector('.turn.assistant >> text=length');
  assert.deepEqual(later.problems, []);
});

test('failures of every kind say what happened, on the run and on the rollout', async () => {
  const { folder, gate } = await project(['raise', 'die', 'hang', 'ungraded', 'down', 'cut'], {
    evaluation: 'agent_workflow_timeout_s = 4',
  });
  gate.let(1000);
  const run = await submit(folder, 'eval');
  assert.equal(await run.ended, 3, run.said.stderr);
  const viewer = await view(folder, 'now');
  const page = await open(viewer);
  for (const text of ['ValueError: row 17 has no unit', 'deadline', 'TypeError: the label is no number', 'is down'])
    await page.waitForSelector(`.failure >> text=${text}`);
  const shows = async (row, outcome, error) => {
    await page.goto(`${viewer.origin}/runs/now/rollouts/${row}.0`);
    await page.waitForSelector(`.facts >> text=${outcome}`);
    await page.waitForSelector(`.bad-box >> text=${error}`);
  };
  await shows(0, 'agent failed', 'row 17 has no unit');
  await shows(1, 'agent failed', '7');
  await shows(2, 'timed out', '4 s');
  await shows(3, 'ungraded', 'the label is no number');
  await shows(4, 'infrastructure failed', 'the model server is down');
  await page.waitForSelector('.attempts >> text=the model server is down');
  await page.goto(`${viewer.origin}/runs/now/rollouts/5.0`);
  await page.waitForSelector('.turn.assistant >> text=length');
  assert.deepEqual(page.problems, []);
});

test('a static copy of a real run has its artifacts as plain files, earlier attempts and a search', async () => {
  const { folder, gate } = await project(['one', 'flaky', 'write']);
  gate.let(100);
  const run = await submit(folder, 'eval');
  assert.equal(await run.ended, 0, run.said.stderr);
  exportRuns(folder, `${folder}/site`, 'now');
  const origin = await serveFiles(folder);
  const page = await newPage();
  await page.goto(`${origin}/site/index.html#/runs/now?q=FLAK`);
  await page.waitForSelector('text=1 of 3 rollouts');
  await page.goto(`${origin}/site/index.html#/runs/now/rollouts/1.0`);
  await page.click('.attempts summary');
  await page.click('.attempts button');
  await page.waitForSelector('dialog >> text=attempt 1');
  await page.keyboard.press('Escape');
  await page.goto(`${origin}/site/index.html#/runs/now/rollouts/2.0`);
  await page.click('summary:has-text("Artifacts (1)")');
  const link = page.locator('a[download="notes.html"]');
  assert.match(await link.getAttribute('href'), /artifacts\/notes\.html\.txt$/);
  const text = await page.evaluate(async (href) => (await fetch(href)).text(), await link.getAttribute('href'));
  assert.match(text, /artifact text/);
  assert.deepEqual(page.problems, []);
});

test('Ctrl-C ends an evaluation and its page in order', async () => {
  const { folder, gate } = await project(['one', 'two', 'three', 'four']);
  const run = await submit(folder, 'eval', '--max-in-flight', '2');
  const page = await watch(run);
  gate.let(1);
  await headline(page, 'rollouts', '1of 4');
  await run.interrupt();
  // What is under way ends; nothing else begins.
  gate.let(100);
  assert.equal(await run.ended, 130, run.said.stderr);
  assert.match(run.said.stderr, /eval resume now/);
  await page.waitForSelector('.status.interrupted');
  await page.waitForSelector('text=This viewer has ended');
  assert.deepEqual(problems(page), []);
});

test('`train submit --view` draws each step as it is made, and ends with the last one', async () => {
  const { folder, gate } = await project(['one', 'two', 'three', 'four'], { training: 'steps = 3' });
  const run = await submit(folder, 'train');
  const page = await watch(run);
  const curve = (step) =>
    page.waitForFunction(
      (last) =>
        [...document.querySelectorAll('.chart')].some((chart) =>
          new RegExp(` at ${last}\\b`).test(chart.getAttribute('aria-label') ?? ''),
        ),
      step,
      { timeout: 120_000 },
    );
  gate.let(4);
  await curve(1);
  await page.waitForSelector('.status.running');
  gate.let(1000);
  assert.equal(await run.ended, 0, run.said.stderr);
  await curve(3);
  await page.waitForSelector('.status.finished');
  await page.waitForSelector('text=This viewer has ended');
  assert.deepEqual(problems(page), []);
});

test('Ctrl-C ends a training and its page in order', async () => {
  const { folder, gate } = await project(['one', 'two'], { training: 'steps = 20' });
  const run = await submit(folder, 'train');
  const page = await watch(run);
  gate.let(4);
  await page.waitForSelector('.chart', { timeout: 120_000 });
  await run.interrupt();
  gate.let(1000);
  assert.equal(await run.ended, 130, run.said.stderr);
  await page.waitForSelector('.status.interrupted');
  await page.waitForSelector('text=This viewer has ended');
  assert.deepEqual(problems(page), []);
});
