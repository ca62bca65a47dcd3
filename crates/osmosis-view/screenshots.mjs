// Makes the pictures of docs/view.md from real runs: a training and two evaluations in a workspace that is given, such as
// a copy of examples/calculator.
//
//   OSMOSIS=target/release/osmosis VIEWER_PACKAGES=target/viewer-packages node crates/osmosis-view/screenshots.mjs WORKSPACE docs/view

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { endAll, open, view } from './tests/browser/support.mjs';

const [workspace, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const viewer = await view(workspace);
const page = await open(viewer, '/', { deviceScaleFactor: 1.5 });
await page.setViewportSize({ width: 1280, height: 800 });

async function ask(path) {
  const answer = await fetch(`${viewer.origin}/api/v1/${path}`, { headers: { authorization: `Bearer ${viewer.key}` } });
  return answer.json();
}

const { items: runs } = await ask('runs');
const training = runs.find((run) => run.kind === 'train');
const [after, before] = runs.filter((run) => run.kind === 'eval');
const { items: rollouts } = await ask(`runs/${training.run}/rollouts?outcome=passed&sort=-length&limit=1`);
const rollout = `${rollouts[0].row_index}.${rollouts[0].run_index}`;

const shots = {
  runs: '/',
  run: `/runs/${after.run}`,
  training: `/runs/${training.run}`,
  rollout: `/runs/${training.run}/rollouts/${rollout}`,
  tokens: `/runs/${training.run}/rollouts/${rollout}/tokens`,
  group: `/runs/${training.run}/rows/${rollouts[0].row_index}`,
  compare: `/compare/${before.run},${after.run}`,
};
for (const [name, path] of Object.entries(shots)) {
  await page.emulateMedia({ colorScheme: name === 'training' || name === 'tokens' ? 'dark' : 'light' });
  await page.goto(viewer.origin + path);
  await page.waitForSelector('main:not([aria-busy])');
  await page.waitForTimeout(800);
  await page.screenshot({ path: join(folder, `${name}.png`) });
}
await endAll();
