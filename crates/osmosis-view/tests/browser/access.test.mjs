import assert from 'node:assert/strict';
import { request } from 'node:http';
import { after, before, test } from 'node:test';
import { endAll, make, newPage, open, view, workspace } from './support.mjs';

let viewer;
before(async () => {
  const folder = workspace();
  make(folder, 'every-outcome', 'demo');
  viewer = await view(folder);
});
after(endAll);

/** A request with exactly these headers. */
function ask(path, headers = {}, method = 'GET') {
  const { hostname, port } = new URL(viewer.origin);
  return new Promise((resolve, reject) => {
    const asked = request({ hostname, port, path, method, headers }, (answer) => {
      let body = '';
      answer.on('data', (piece) => {
        body += piece;
      });
      answer.on('end', () => resolve({ status: answer.statusCode, headers: answer.headers, body }));
    });
    asked.on('error', reject);
    asked.end();
  });
}

const PATHS = [
  '/',
  '/runs/demo',
  '/assets/main.js',
  '/api/v1/runs',
  '/api/v1/runs/demo',
  '/api/v1/runs/demo/grid',
  '/api/v1/runs/demo/rollouts',
  '/api/v1/runs/demo/rollouts/0.0',
  '/api/v1/runs/demo/rollouts/0.0/tokens',
  '/api/v1/runs/demo/rollouts/0.0/calls/1/request',
  '/api/v1/runs/demo/events',
  '/api/v1/events',
  '/api/v1/compare?runs=a,b',
  '/api/none',
  '/none',
];

test('no route answers without a key, and none with a wrong one', async () => {
  for (const path of PATHS) {
    for (const headers of [
      {},
      { authorization: 'Bearer osm-00000000000000000000000000000000' },
      { cookie: 'osmosis_view=1' },
    ]) {
      const { status, body } = await ask(path, headers);
      assert.equal(status, 401, path);
      assert.ok(!body.includes('every') && !body.includes('import '), path);
    }
  }
});

test('every answer has a policy without inline scripts, also a refusal', async () => {
  for (const headers of [{}, { authorization: `Bearer ${viewer.key}` }]) {
    const { headers: got } = await ask('/', headers);
    const policy = got['content-security-policy'];
    assert.match(policy, /default-src 'none'/);
    assert.ok(!policy.includes('unsafe'), policy);
    assert.equal(got['x-content-type-options'], 'nosniff');
  }
});

test('another name and another page are refused, whatever key they have', async () => {
  const authorization = `Bearer ${viewer.key}`;
  assert.equal((await ask('/api/v1/runs', { authorization })).status, 200);
  assert.equal((await ask('/api/v1/runs', { authorization, host: 'evil.example' })).status, 403);
  assert.equal((await ask('/api/v1/runs', { authorization, origin: 'http://evil.example' })).status, 403);
  assert.equal((await ask('/api/v1/runs', { authorization, origin: 'null' })).status, 403);
});

test('nothing can be written', async () => {
  const authorization = `Bearer ${viewer.key}`;
  for (const method of ['POST', 'PUT', 'DELETE', 'PATCH']) {
    for (const path of ['/api/v1/runs/demo', '/', '/api/v1/runs'])
      assert.equal((await ask(path, { authorization }, method)).status, 405, `${method} ${path}`);
  }
});

test('the key of the address works once, leaves it, and becomes a cookie that scripts do not see', async () => {
  const page = await open(viewer);
  assert.equal(new URL(page.url()).search, '');
  assert.equal(await page.evaluate(() => document.cookie), '');
  const [cookie] = await page.context().cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === 'Strict');
  await page.reload();
  await page.waitForSelector('text=demo');
  const other = await newPage();
  const again = await other.goto(viewer.url);
  assert.equal(again.status(), 401);
  await other.waitForSelector('text=This viewer needs a key');
  assert.deepEqual(page.problems, []);
});

test('lists have filters, an order and pages', async () => {
  const authorization = `Bearer ${viewer.key}`;
  const list = async (query) => JSON.parse((await ask(`/api/v1/runs/demo/rollouts?${query}`, { authorization })).body);
  const all = await list('limit=1000');
  assert.equal(all.total_count, 40);
  assert.equal(all.next, null);
  const failed = await list('outcome=agent_failed');
  assert.ok(failed.items.length > 0 && failed.items.every((item) => item.outcome === 'agent_failed'));
  const below = await list('reward_below=0.6&sort=-reward');
  assert.ok(below.items.every((item) => item.reward < 0.6));
  assert.deepEqual(
    below.items.map((item) => item.reward),
    below.items.map((item) => item.reward).toSorted((a, b) => b - a),
  );
  const first = await list('limit=15');
  const second = await list(`limit=15&cursor=${first.next}`);
  const third = await list(`limit=15&cursor=${second.next}`);
  assert.deepEqual(
    [...first.items, ...second.items, ...third.items].map((item) => item.rollout_id),
    all.items.map((item) => item.rollout_id),
  );
  const said = await list('q=forty');
  assert.equal(said.total_count, 0);
  const tool = await list('tool=multiply');
  assert.ok(tool.total_count > 0 && tool.total_count < 10, String(tool.total_count));
  const { error } = await list('sort=colour');
  assert.match(error.message, /colour/);
});

test('Ctrl-C ends it with 0, also with open streams', async () => {
  const folder = workspace();
  make(folder, 'every-outcome', 'demo');
  const own = await view(folder);
  const page = await open(own);
  await page.waitForSelector('text=demo');
  assert.equal(await own.end(), 0);
});
