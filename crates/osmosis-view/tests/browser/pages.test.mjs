import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeSource, endAll, make, newPage, open, view, workspace } from './support.mjs';

let folder;
let viewer;
/** One browser context for all: the address works once. */
let page;
before(async () => {
  folder = workspace();
  make(folder, 'every-outcome', 'alpha');
  make(folder, 'every-outcome', 'beta');
  make(folder, 'training', 'learner');
  make(folder, 'training', 'learner2');
  make(folder, 'long', 'long');
  viewer = await view(folder);
  page = await open(viewer);
});
after(endAll);

async function go(path, wait) {
  await page.goto(viewer.origin + path);
  await page.waitForSelector('main:not([aria-busy])');
  if (wait) await page.waitForSelector(wait);
}

test('the list of runs can be searched, filtered and sorted, and its state is in the address', async () => {
  await go('/', 'text=alpha');
  assert.equal(await page.locator('tbody tr').count(), 5);
  await page.keyboard.press('/');
  await page.keyboard.type('alpha');
  await page.waitForURL(/q=alpha/);
  assert.equal(await page.locator('tbody tr').count(), 1);
  await page.reload();
  await page.waitForSelector('text=alpha');
  assert.equal(await page.locator('tbody tr').count(), 1);
  await go('/?kind=train', 'text=learner');
  assert.equal(await page.locator('tbody tr').count(), 2);
  await go('/');
  await page.getByRole('button', { name: 'Pass rate' }).click();
  await page.waitForURL(/sort=-pass/);
});

test('two runs are picked and compared by the keyboard alone', async () => {
  await go('/?kind=eval', 'text=alpha');
  await page.keyboard.press('j');
  await page.keyboard.press('x');
  await page.keyboard.press('j');
  await page.keyboard.press('x');
  await page.keyboard.press('c');
  await page.waitForURL(/\/compare\//);
  await page.waitForSelector('.verdict');
  assert.match(await page.locator('.verdict').innerText(), /No .*difference|better|worse|Inconclusive/);
});

test('a run shows its numbers, every failure grouped, and a grid that filters', async () => {
  await go('/runs/alpha', '.rollout-grid');
  for (const text of [
    'pass rate',
    'reward',
    'model calls',
    'Outcomes',
    'Rewards',
    'Durations by phase',
    'ValueError: row',
    'timed out',
    'ungraded',
    'rejected',
    'infrastructure failed',
    'cancelled',
  ])
    await page.waitForSelector(`text=${text}`);
  await page.waitForSelector('text=40 rollouts in 10 rows');
  await page.locator('.chips .chip', { hasText: 'agent failed' }).last().click();
  await page.waitForURL(/outcome=agent_failed/);
  assert.match(await page.locator('p[role=status]').innerText(), /of 40 rollouts/);
  await go('/runs/alpha?tool=multiply', '.rollout-grid');
  await page.waitForFunction(() => /^\d of 40/.test(document.querySelector('p[role=status]')?.textContent ?? ''));
  await go('/runs/alpha?view=list&sort=-reward', 'table');
  assert.equal(await page.locator('tbody tr').count(), 40);
});

test('a definition opens on demand', async () => {
  await go('/runs/alpha', '.numbers');
  await page.getByRole('button', { name: 'What is pass rate?' }).click();
  await page.waitForSelector('.definition');
});

test('the grid is walked and opened by the keyboard', async () => {
  await go('/runs/alpha', '.rollout-grid');
  await page.keyboard.press('j');
  for (const key of ['j', 'l']) await page.keyboard.press(key);
  await page.waitForFunction(() => document.getElementById('announcer')?.textContent?.startsWith('row 1, rollout 1'));
  await page.keyboard.press('Enter');
  await page.waitForURL(/\/runs\/alpha\/rollouts\/1\.1$/);
  await page.waitForSelector('.turn');
  await page.goBack();
  await page.waitForURL(/\/runs\/alpha$/);
  await page.waitForSelector('.rollout-grid');
});

test('a rollout shows what was said, why it has its reward, and its exact bytes', async () => {
  await go('/runs/alpha/rollouts/2.2', '.turn');
  for (const text of ['You are careful.', 'Ground truth', 'Timeline', 'Call tree', 'Commands', 'advantage'])
    await page.waitForSelector(`text=${text}`);
  await page.waitForSelector('.turn.assistant >> text=multiply');
  await page.waitForSelector('.reasoning .text >> text=I need a product.');
  await page.locator('.turn.assistant button', { hasText: 'raw' }).first().click();
  await page.waitForSelector('dialog >> text=Request');
  await page.waitForSelector('dialog pre >> text=messages');
  await page.keyboard.press('Escape');
  await page.keyboard.press('j');
  // From the turn whose button was pressed.
  await page.waitForURL(/turn=\d+/);
  await page.keyboard.press('n');
  await page.waitForURL(/rollouts\/2\.3/);
});

test('failures say what happened', async () => {
  await go('/runs/alpha/rollouts/0.3', 'text=Traceback');
  await page.waitForSelector('text=ValueError: row 17 has no unit');
  await go('/runs/alpha/rollouts/9.3', 'text=Nothing was said yet');
});

test('the token lens colours tokens and tells what each is', async () => {
  await go('/runs/alpha/rollouts/0.0', '.turn');
  await page.keyboard.press('t');
  await page.waitForURL(/\/tokens$/);
  await page.waitForSelector('.lens t.p');
  await page.locator('.lens t:not(.p)').first().hover();
  await page.waitForFunction(() => /id \d+, position \d+/.test(document.getElementById('tip')?.textContent ?? ''));
  const tip = await page.locator('#tip').innerText();
  assert.match(tip, /logprob/);
  assert.match(tip, /version 0/);
  assert.match(tip, /loss mask/);
  await page.waitForSelector('text=the rollouts of this row differ from here on');
  for (const [key, by, name] of [
    ['2', 'advantage', 'a'],
    ['3', 'version', 'v'],
    ['4', 'mask', 'm'],
  ]) {
    await page.keyboard.press(key);
    await page.waitForURL(new RegExp(`by=${by}`));
    assert.ok((await page.locator(`.lens t[class^="${name}"]`).count()) > 0, by);
  }
});

test('the rollouts of a row stand side by side, with what differs marked', async () => {
  await go('/runs/alpha/rows/0', '.columns .turn');
  await page.waitForSelector('ins');
  assert.equal(await page.locator('.columns > section').count(), 4);
});

test('a training has curves; a step opens its groups; several runs lie over each other', async () => {
  await go('/runs/learner', '.charts svg');
  for (const title of [
    'Held-out reward',
    'Reward in training',
    'Entropy',
    'KL',
    'Clip share',
    'Logprob mismatch',
    'Seconds per step',
  ])
    await page.waitForSelector(`figcaption >> text=${title}`);
  assert.ok((await page.locator('.chart .line.dashed').count()) > 0, 'greedy is apart from sampled');
  const box = await page.locator('.chart').nth(2).boundingBox();
  await page.mouse.move(box.x + box.width * 0.4, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.8, box.y + 60, { steps: 4 });
  await page.mouse.up();
  await page.waitForURL(/x0=/);
  await go('/runs/learner/steps/3', 'text=Step 3');
  await page.waitForSelector('text=Groups');
  await go('/runs/learner?with=learner2', '.charts svg');
  await page.waitForSelector('text=learner2: ');
});

test('help lists the keys of the page', async () => {
  await go('/runs/alpha', '.rollout-grid');
  await page.keyboard.press('?');
  await page.waitForSelector('dialog >> text=next row');
  await page.keyboard.press('Escape');
  await page.waitForSelector('dialog', { state: 'detached' });
});

test('what is not there is said, with a way back', async () => {
  await go('/runs/none', 'text=This could not be shown');
  await page.waitForSelector('text=no run `none`');
  await page.waitForSelector('text=it opens here');
  const before = page.requested.length;
  await go('/runs/alpha/rollouts/99.0', 'text=This could not be shown');
  const asked = page.requested.slice(before);
  assert.ok(!asked.some((url) => url.endsWith('/events')), 'only a run may be about to begin');
  page.problems.length = 0;
});

const EVERY_PAGE = [
  '/',
  '/runs/alpha',
  '/runs/alpha?view=list',
  '/runs/alpha/rollouts/2.2',
  '/runs/alpha/rollouts/0.3',
  '/runs/alpha/rollouts/0.0/tokens',
  '/runs/alpha/rows/0',
  '/runs/learner',
  '/runs/learner/steps/3',
  '/compare/alpha,beta',
  '/runs/none',
];

test('axe finds nothing serious on any page, light and dark, wide and narrow', async () => {
  // The page's own policy lets no script of a test in.
  const checked = await newPage({ bypassCSP: true });
  await checked.context().addCookies(await page.context().cookies());

  for (const scheme of ['light', 'dark']) {
    for (const width of [1440, 400]) {
      await checked.emulateMedia({ colorScheme: scheme });
      await checked.setViewportSize({ width, height: 900 });
      for (const path of EVERY_PAGE) {
        await checked.goto(viewer.origin + path);
        await checked.waitForSelector('main:not([aria-busy])');
        await checked.waitForTimeout(150);
        await checked.addScriptTag({ content: axeSource });
        const found = await checked.evaluate(async () => {
          const { violations } = await window.axe.run(document, { resultTypes: ['violations'] });
          return violations
            .filter(({ impact }) => impact === 'serious' || impact === 'critical')
            .map(
              ({ id, nodes }) =>
                `${id}: ${nodes
                  .slice(0, 3)
                  .map((node) => node.html.slice(0, 160))
                  .join(' | ')}`,
            );
        });
        assert.deepEqual(found, [], `${path}, ${scheme}, ${width} px`);
        const wider = await checked.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wider <= 0, `${path} is ${wider} px wider than ${width}`);
      }
    }
  }
});

test('nothing comes from elsewhere, and nothing goes wrong unseen', async () => {
  assert.ok(
    page.requested.every((url) => url.startsWith(viewer.origin) || url.startsWith('data:') || url.startsWith('blob:')),
    page.requested.find((url) => !url.startsWith(viewer.origin)),
  );
  assert.deepEqual(
    page.problems.filter((text) => !text.includes('404')),
    [],
  );
});
