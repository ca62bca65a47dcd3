// What both measurements share: a browser, medians, memory, frames.

import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

export function launcher(packages, executablePath) {
  const require = createRequire(join(packages, 'package.json'));
  const { chromium } = require('playwright-core');
  return async () => {
    const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });
    const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
    return { browser, page };
  };
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

/** Peak memory of a process and those below it, in MB. */
export function peak(pid) {
  const own = (id) => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, 'utf8'))?.[1] ?? 0) / 1024;
  let sum = own(pid);
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    const children = readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').trim();
    for (const child of children.split(' ').filter(Boolean)) sum += peak(Number(child));
  }
  return sum;
}

/** A click is answered only when nothing else keeps the page busy. */
export const idle = (page) =>
  page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0))));

/** Frames while something is scrolled, as `{p50_ms, p95_ms, max_ms}`; `inside` is a selector, `null` the page. */
export async function frames(page, inside) {
  const times = await page.evaluate(async (selector) => {
    const element = selector ? document.querySelector(selector) : document.scrollingElement;
    const taken = [];
    let last = performance.now();
    for (let frame = 0; frame < 240; frame += 1) {
      element.scrollTop += 120;
      const now = await new Promise(requestAnimationFrame);
      taken.push(now - last);
      last = now;
    }
    return taken.slice(2).sort((a, b) => a - b);
  }, inside);
  const at = (share) => +times[Math.min(times.length - 1, Math.floor(times.length * share))].toFixed(1);
  return { p50_ms: at(0.5), p95_ms: at(0.95), max_ms: at(1) };
}
