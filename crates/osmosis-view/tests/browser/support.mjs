// What the tests share: a workspace with runs, a viewer, a browser. All that is started here is ended here.

import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Where `cargo xtask ci` installed the packages. */
const require = createRequire(join(process.env.VIEWER_PACKAGES ?? '.', 'package.json'));
export const { chromium } = require('playwright-core');
export const axeSource = require('axe-core').source;

const OSMOSIS = process.env.OSMOSIS ?? 'osmosis';
const MAKE_RUNS = process.env.MAKE_RUNS ?? 'make_runs';

/** @type {(() => unknown)[]} */
const endings = [];

export async function endAll() {
  for (const end of endings.splice(0).reverse()) await end();
}

/** What is ended with the tests of a file. @param {() => unknown} end */
export function onEnd(end) {
  endings.push(end);
}

export function workspace() {
  const folder = mkdtempSync(join(tmpdir(), 'viewer-test-'));
  endings.push(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

export function make(folder, kind, name, ...rest) {
  const made = spawnSync(MAKE_RUNS, [folder, kind, name, ...rest.map(String)], { encoding: 'utf8' });
  if (made.status !== 0) throw new Error(`make_runs ${kind}: ${made.stderr}`);
}

/** A run that another process writes to; each `go` is one more result. */
export async function makeLive(folder, kind, name) {
  const child = spawn(MAKE_RUNS, [folder, kind, name], { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = readLines(child.stdout);
  const ended = new Promise((resolve) => child.on('exit', resolve));
  endings.push(async () => {
    child.stdin.end();
    await ended;
  });
  await lines();
  return {
    async go() {
      child.stdin.write('\n');
      await lines();
    },
    async end() {
      child.stdin.end();
      await ended;
    },
  };
}

function readLines(stream) {
  let rest = '';
  const waiting = [];
  const ready = [];
  stream.setEncoding('utf8');
  stream.on('data', (text) => {
    rest += text;
    for (let at = rest.indexOf('\n'); at >= 0; at = rest.indexOf('\n')) {
      const line = rest.slice(0, at);
      rest = rest.slice(at + 1);
      const next = waiting.shift();
      if (next) next(line);
      else ready.push(line);
    }
  });
  return () =>
    new Promise((resolve) => {
      const line = ready.shift();
      if (line === undefined) waiting.push(resolve);
      else resolve(line);
    });
}

/** `osmosis view --json`: its address, its key, and its end. */
export async function view(folder, ...more) {
  const child = spawn(OSMOSIS, ['view', '--workspace', folder, '--json', ...more], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let text = '';
  child.stdout.setEncoding('utf8');
  const resource = await new Promise((resolve, reject) => {
    child.on('exit', () => reject(new Error(`osmosis view ended: ${text}`)));
    child.stdout.on('data', (piece) => {
      text += piece;
      try {
        resolve(JSON.parse(text).resource);
      } catch {
        // Not all of it yet.
      }
    });
  });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  const end = async () => {
    child.kill('SIGINT');
    return ended;
  };
  endings.push(end);
  return { url: resource.url, key: resource.api_key, origin: new URL(resource.url).origin, pid: child.pid, end };
}

export function exportRuns(folder, to, ...runs) {
  const written = spawnSync(OSMOSIS, ['view', ...runs, '--workspace', folder, '--export', to, '--json'], {
    encoding: 'utf8',
    env: { ...process.env, DEMO_API_KEY: 'hunter2-hunter2' },
  });
  if (written.status !== 0) throw new Error(written.stderr);
  return JSON.parse(written.stdout).resource;
}

let browser;

export async function newPage(options = {}) {
  if (!browser) {
    browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      args: ['--no-sandbox', '--disable-gpu'],
    });
    endings.push(async () => {
      await browser.close();
      browser = undefined;
    });
  }
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.requested = [];
  page.on('pageerror', (error) => page.problems.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') page.problems.push(`${message.text()} ${message.location().url}`);
  });
  page.on('request', (request) => page.requested.push(request.url()));
  return page;
}

/** A page with the cookie of a viewer. */
export async function open(viewer, path = '/', options = {}) {
  const page = await newPage(options);
  await page.goto(viewer.url);
  await page.waitForSelector('main:not([aria-busy])');
  if (path !== '/') await page.goto(viewer.origin + path);
  await page.waitForSelector('main:not([aria-busy])');
  return page;
}

/** A plain web server for files. */
export async function serveFiles(folder) {
  const { createServer } = await import('node:http');
  const { readFile } = await import('node:fs/promises');
  const types = {
    html: 'text/html',
    js: 'text/javascript',
    css: 'text/css',
    json: 'application/json',
    svg: 'image/svg+xml',
    txt: 'text/plain',
  };
  const server = createServer(async (request, answer) => {
    const path = decodeURIComponent(new URL(request.url, 'http://x').pathname);
    try {
      const bytes = await readFile(join(folder, path.endsWith('/') ? `${path}index.html` : path));
      answer.writeHead(200, {
        'content-type': types[path.split('.').pop()] ?? (path.endsWith('/') ? 'text/html' : 'application/octet-stream'),
      });
      answer.end(bytes);
    } catch {
      answer.writeHead(404);
      answer.end();
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  endings.push(
    () =>
      new Promise((resolve) => {
        server.closeAllConnections();
        server.close(resolve);
      }),
  );
  return `http://127.0.0.1:${server.address().port}`;
}
