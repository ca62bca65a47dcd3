import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { endAll, make, open, view, workspace } from './support.mjs';

let viewer;
let page;
before(async () => {
  const folder = workspace();
  make(folder, 'hostile', 'hostile');
  viewer = await view(folder);
  page = await open(viewer);
});
after(endAll);

const rollout = async (id) => {
  await page.goto(`${viewer.origin}/runs/hostile/rollouts/${id}`);
  await page.waitForSelector('.turn.assistant');
};

test('HTML and scripts are text', async () => {
  await rollout('0.0');
  const text = await page.locator('.turn.user .text').innerText();
  assert.ok(text.startsWith('<script>window.pwned = 1</script><img src=x'), text);
  assert.equal(await page.locator('main script, main img, main b').count(), 0);
  await page.goto(`${viewer.origin}/runs/hostile/rows/0`);
  await page.waitForSelector('.columns .turn');
  await rollout('3.0');
  assert.equal(await page.locator('main .turn a').count(), 0);
  assert.equal(await page.evaluate(() => window.pwned), undefined);
});

test('characters that turn text round or hide are named', async () => {
  await rollout('1.0');
  const text = await page.locator('.turn.user .text').innerText();
  assert.ok(text.includes('U+202E') && !text.includes('\u202e'), text);
  assert.ok(text.includes('U+0000') && text.includes('U+001B'), text);
});

test('a message of 10 MB does not stop the page, and can be read on', async () => {
  const began = Date.now();
  await rollout('2.0');
  assert.ok(Date.now() - began < 10_000);
  assert.ok((await page.locator('.turn.user .text').innerText()).length < 20_000);
  await page.locator('.turn.user button', { hasText: 'Show more' }).click();
  assert.ok((await page.locator('.turn.user .text').innerText()).length > 60_000);
});

test('bytes that are no text are shown as far as they can be, and said to be so', async () => {
  await page.goto(`${viewer.origin}/runs/hostile/rollouts/4.0`);
  await page.locator('.timeline button.span[aria-label^="call 1:"]').dispatchEvent('click');
  await page.waitForSelector('dialog >> text=Some bytes are no UTF-8');
  await page.waitForSelector('dialog >> text=bad �� bytes');
});

test('nothing of it asked for anything elsewhere', () => {
  assert.ok(
    page.requested.every((url) => url.startsWith(viewer.origin) || url.startsWith('data:')),
    page.requested.join('\n'),
  );
  assert.deepEqual(page.problems, []);
});
