// The viewer in Chromium: how long until a page can be used, and how evenly it scrolls. Prints one JSON document.

import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [osmosis, workspace, packages, chromiumPath] = process.argv.slice(2);
const require = createRequire(join(packages, 'package.json'));
const { chromium } = require('playwright-core');

const ROUNDS = 5;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function serve() {
  const child = spawn(osmosis, ['view', '--workspace', workspace, '--json'], { stdio: ['ignore', 'pipe', 'inherit'] });
  return new Promise((resolve) => {
    let text = '';
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

/** Peak memory of a process, in MB. */
function peak(pid) {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(/VmHWM:\s+(\d+)/.exec(status)[1]) / 1024;
}

const results = {};

/** Time from the address to what is waited for, with a new server each time: nothing is in its memory. */
async function firstScreen(name, path, selector) {
  const cold = [];
  const warm = [];
  let memory = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    const viewer = await serve();
    const browser = await chromium.launch({ executablePath: chromiumPath, args: ['--no-sandbox', '--disable-gpu'] });
    const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
    const origin = new URL(viewer.url).origin;
    // The cookie first; the list is not measured here.
    await page.goto(`${origin}/none${new URL(viewer.url).search}`);
    for (const times of [cold, warm]) {
      const began = performance.now();
      await page.goto(origin + path);
      await page.waitForSelector(selector);
      // A click is answered only when nothing else keeps the page busy.
      await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0))));
      times.push(performance.now() - began);
    }
    memory = Math.max(memory, peak(viewer.child.pid));
    await browser.close();
    viewer.child.kill('SIGINT');
    await new Promise((resolve) => viewer.child.on('exit', resolve));
  }
  results[name] = { cold_ms: Math.round(median(cold)), warm_ms: Math.round(median(warm)), server_mb: Math.round(memory) };
}

/** Frames while the page is scrolled from end to end. */
async function scrolling(name, path, selector, scroller) {
  const viewer = await serve();
  const browser = await chromium.launch({ executablePath: chromiumPath, args: ['--no-sandbox', '--disable-gpu'] });
  const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
  const origin = new URL(viewer.url).origin;
  await page.goto(`${origin}/none${new URL(viewer.url).search}`);
  await page.goto(origin + path);
  await page.waitForSelector(selector);
  const frames = await page.evaluate(async (inside) => {
    const element = inside ? document.querySelector(inside) : document.scrollingElement;
    const times = [];
    let last = performance.now();
    for (let frame = 0; frame < 240; frame += 1) {
      element.scrollTop += 120;
      const now = await new Promise(requestAnimationFrame);
      times.push(now - last);
      last = now;
    }
    return times.slice(2).sort((a, b) => a - b);
  }, scroller);
  await browser.close();
  viewer.child.kill('SIGINT');
  results[name] = { p50_ms: +frames[Math.floor(frames.length / 2)].toFixed(1), p95_ms: +frames[Math.floor(frames.length * 0.95)].toFixed(1), max_ms: +frames[frames.length - 1].toFixed(1) };
}

await firstScreen('run of 10,000', '/runs/r10000', '.rollout-grid canvas');
await firstScreen('run of 100,000', '/runs/r100000', '.rollout-grid canvas');
await firstScreen('rollout of 200 turns', '/runs/long/rollouts/0.0', '.turn');
await firstScreen('token lens of 100,000', '/runs/long/rollouts/0.0/tokens', '.lens t');
await scrolling('grid of 100,000', '/runs/r100000', '.rollout-grid canvas', '.rollout-grid .scroller');
await scrolling('transcript of 200 turns', '/runs/long/rollouts/0.0', '.turn', null);
await scrolling('token lens', '/runs/long/rollouts/0.0/tokens', '.lens t', null);
console.log(JSON.stringify(results));
