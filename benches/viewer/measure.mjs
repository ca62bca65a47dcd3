// The viewer in Chromium: how long until a page can be used, and how evenly it scrolls. Prints one JSON document.

import { spawn } from 'node:child_process';
import { frames, idle, launcher, median, peak } from './browser.mjs';

const [osmosis, workspace, packages, chromiumPath, rounds] = process.argv.slice(2);
const launch = launcher(packages, chromiumPath);

function serve() {
  const child = spawn(osmosis, ['view', '--workspace', workspace, '--json'], { stdio: ['ignore', 'pipe', 'inherit'] });
  return new Promise((resolve, reject) => {
    let text = '';
    child.on('exit', () => reject(new Error(`osmosis view ended: ${text}`)));
    child.stdout.on('data', (piece) => {
      text += piece;
      try {
        resolve({ child, ...JSON.parse(text).resource });
      } catch {
        // Not all of it yet.
      }
    });
  });
}

async function end(viewer, browser) {
  await browser.close();
  const ended = new Promise((resolve) => viewer.child.on('exit', resolve));
  viewer.child.kill('SIGINT');
  await ended;
}

const results = {};

/** Time from the address to what is waited for, with a new server each time: nothing is in its memory. */
async function firstScreen(name, path, selector) {
  const cold = [];
  const warm = [];
  let memory = 0;
  for (let round = 0; round < Number(rounds); round += 1) {
    const viewer = await serve();
    const { browser, page } = await launch();
    const origin = new URL(viewer.url).origin;
    // The cookie first; the list is not measured here.
    await page.goto(`${origin}/none${new URL(viewer.url).search}`);
    for (const times of [cold, warm]) {
      const began = performance.now();
      await page.goto(origin + path);
      await page.waitForSelector(selector);
      await idle(page);
      times.push(performance.now() - began);
    }
    memory = Math.max(memory, peak(viewer.child.pid));
    await end(viewer, browser);
  }
  results[name] = { cold_ms: Math.round(median(cold)), warm_ms: Math.round(median(warm)), server_mb: Math.round(memory) };
}

/** Frames while the page is scrolled. */
async function scrolling(name, path, selector, scroller) {
  const viewer = await serve();
  const { browser, page } = await launch();
  const origin = new URL(viewer.url).origin;
  await page.goto(`${origin}/none${new URL(viewer.url).search}`);
  await page.goto(origin + path);
  await page.waitForSelector(selector);
  results[name] = await frames(page, scroller);
  await end(viewer, browser);
}

await firstScreen('run of 10,000', '/runs/r10000', '.rollout-grid canvas');
await firstScreen('run of 100,000', '/runs/r100000', '.rollout-grid canvas');
await firstScreen('rollout of 200 turns', '/runs/long/rollouts/0.0', '.turn');
await firstScreen('token lens of 100,000', '/runs/long/rollouts/0.0/tokens', '.lens t');
await scrolling('grid of 100,000', '/runs/r100000', '.rollout-grid canvas', '.rollout-grid .scroller');
await scrolling('transcript of 200 turns', '/runs/long/rollouts/0.0', '.turn', null);
await scrolling('token lens', '/runs/long/rollouts/0.0/tokens', '.lens t', null);
console.log(JSON.stringify(results));
