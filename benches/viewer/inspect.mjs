// The same runs in `inspect view`, measured like ours. Prints one JSON document.

import { spawn, spawnSync } from 'node:child_process';
import { createServer } from 'node:net';
import { frames, idle, launcher, median, peak } from './browser.mjs';

const [inspect, logs, packages, chromiumPath, rounds] = process.argv.slice(2);
const launch = launcher(packages, chromiumPath);
const LATE_MS = 120_000;

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

async function serve() {
  const port = await freePort();
  const child = spawn(inspect, ['view', 'start', '--log-dir', logs, '--host', '127.0.0.1', '--port', String(port)], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const origin = `http://127.0.0.1:${port}`;
  const began = performance.now();
  while (performance.now() - began < LATE_MS) {
    try {
      await fetch(origin);
      return { child, origin };
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  throw new Error('`inspect view` does not answer');
}

async function end({ child }, browser) {
  await browser.close();
  const ended = new Promise((resolve) => child.on('exit', resolve));
  child.kill('SIGTERM');
  await ended;
}

const results = { version: spawnSync(inspect, ['--version'], { encoding: 'utf8' }).stdout.trim() };

/** Until the text of the run's rows, or of the sample's messages, can be read; a new server and browser each time. */
async function firstScreen(name, path, text, scrolled) {
  const cold = [];
  const warm = [];
  let memory = 0;
  for (let round = 0; round < Number(rounds); round += 1) {
    const viewer = await serve();
    const { browser, page } = await launch();
    try {
      await page.goto(`${viewer.origin}/#/none`);
      for (const times of [cold, warm]) {
        const began = performance.now();
        await page.goto('about:blank');
        await page.goto(`${viewer.origin}/#${path}`);
        await page.waitForFunction((wanted) => document.body.innerText.includes(wanted), text, { timeout: LATE_MS });
        await idle(page);
        times.push(performance.now() - began);
      }
      memory = Math.max(memory, peak(viewer.child.pid));
      if (scrolled && round === 0) {
        // Whatever it is that scrolls there: the element with the most below its edge.
        await page.evaluate(() => {
          const most = [document.scrollingElement, ...document.querySelectorAll('*')].reduce((best, one) =>
            one.scrollHeight - one.clientHeight > best.scrollHeight - best.clientHeight && one.clientHeight > 300 ? one : best,
          );
          most.setAttribute('data-scrolled', '');
        });
        results[`scrolling ${scrolled}`] = await frames(page, '[data-scrolled]');
      }
    } catch (error) {
      process.stderr.write(`inspect view, ${name}: ${error}\n`);
      await end(viewer, browser);
      return;
    }
    await end(viewer, browser);
  }
  results[name] = { cold_ms: Math.round(median(cold)), warm_ms: Math.round(median(warm)), server_mb: Math.round(memory) };
}

await firstScreen('run of 10,000', '/logs/r10000.eval', 'What is 6 times 7?', null);
await firstScreen('run of 100,000', '/logs/r100000.eval', 'What is 6 times 7?', 'grid of 100,000');
await firstScreen('rollout of 200 turns', '/logs/long.eval/samples/sample/0/1', 'Turn 0:', 'transcript of 200 turns');
console.log(JSON.stringify(results));
