// Runs of the real engine: a workspace whose agents wait at a gate that the test opens, so that nothing depends on how
// fast the machine is.

import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { onEnd, workspace } from './support.mjs';

const OSMOSIS = process.env.OSMOSIS ?? 'osmosis';
const PYTHON = process.env.PYTHON ?? 'python3';

const AGENT = `
import asyncio
import os

import httpx

from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context


async def ask(messages):
    rollout = get_rollout_context()
    async with httpx.AsyncClient(timeout=600) as client:
        reply = await client.post(
            f"{rollout.chat_completions_url}/chat/completions",
            headers={"Authorization": f"Bearer {rollout.api_key}"},
            json={"model": "osmosis-rollout", "messages": messages, "max_tokens": 12},
        )
        reply.raise_for_status()
        return reply.json()["choices"][0]["message"]


class Gated(AgentWorkflow):
    async def run(self, ctx):
        async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
            await client.get(os.environ["GATE"])
        text = ctx.prompt[-1]["content"]
        if text == "raise":
            raise ValueError("row 17 has no unit")
        if text == "die":
            os._exit(7)
        if text == "hang":
            await asyncio.sleep(3600)
        answer = await ask(ctx.prompt)
        if ctx.artifacts_dir is not None and text == "write":
            (ctx.artifacts_dir / "notes.html").write_text("<script>window.pwned = 1</script> artifact text")
        return [*ctx.prompt, answer]


class Checksum(Grader):
    async def grade(self, ctx):
        text = str(ctx.sample.messages[-1]["content"])
        if text == "ungraded":
            raise TypeError("the label is no number")
        ctx.set_reward(1.0 if text == ctx.label else (sum(map(ord, text)) % 7) / 7)
`;

const SCRIPT = `
[[reply]]
when.last_user = 'flaky'
times = 1
error = { status = 500, message = "the model server is starting" }

[[reply]]
when.last_user = 'down'
error = { status = 503, message = "the model server is down" }

[[reply]]
when.last_user = 'cut'
text = "This answer is cut off in the"
finish_reason = "length"

[[reply]]
when.last_user = '(?<word>\\S+)'
text = "{word}"
`;

/** A gate that agents wait at; each `let(n)` lets n more of them through. */
async function gate() {
  /** @type {(() => void)[]} */
  const waiting = [];
  let free = 0;
  const server = createServer((_, answer) => {
    const pass = () => answer.end('go');
    if (free > 0) {
      free -= 1;
      pass();
    } else waiting.push(pass);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  onEnd(() => {
    server.closeAllConnections();
    server.close();
  });
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    let(count) {
      free += count;
      while (free > 0 && waiting.length) {
        free -= 1;
        waiting.shift()();
      }
    },
  };
}

/** A workspace with an evaluation and a training. @param {string[]} prompts */
export async function project(prompts, { evaluation = '', training = '' } = {}) {
  const folder = workspace();
  const open = await gate();
  const write = (path, text) => {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), text);
  };
  const config = (model) =>
    `[experiment]\nrollout = "r"\nentrypoint = "main.py"\ndataset = "d"\nmodel_path = "${model}"\n\n[env]\nGATE = "${open.url}"\n\n`;
  write('rollouts/r/main.py', AGENT);
  write('data/d.jsonl', prompts.map((text) => JSON.stringify({ user_prompt: text, ground_truth: text })).join('\n'));
  write('policies/p.toml', SCRIPT);
  write('configs/eval/c.toml', `${config('script:policies/p.toml')}[evaluation]\n${evaluation}\n`);
  write(
    'configs/training/c.toml',
    `${config('builtin/tiny')}[training]\nrollout_batch_size = 1\nn_samples_per_prompt = 4\nlr = 1e-3\nseed = 5\n${training}\n`,
  );
  return { folder, gate: open };
}

/** `osmosis eval|train submit --view`, started. @param {string} folder @param {'eval' | 'train'} kind */
export async function submit(folder, kind, ...more) {
  const config = `configs/${kind === 'eval' ? 'eval' : 'training'}/c.toml`;
  const child = spawn(OSMOSIS, [kind, 'submit', config, '--name', 'now', '--python', PYTHON, '--view', ...more], {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      ...process.env,
      TMPDIR: folder,
      OSMOSIS_CACHE_DIR: join(folder, 'cache'),
      XDG_STATE_HOME: join(folder, 'state'),
    },
  });
  const said = { stdout: '', stderr: '' };
  for (const name of /** @type {const} */ (['stdout', 'stderr'])) {
    child[name].setEncoding('utf8');
    child[name].on('data', (text) => {
      said[name] += text;
    });
  }
  const ended = new Promise((resolve) => child.on('exit', (code) => resolve(code)));
  onEnd(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const url = await new Promise((resolve, reject) => {
    child.stderr.on('data', () => {
      const found = /^view: (http\S+)$/m.exec(said.stderr);
      if (found) resolve(found[1]);
    });
    child.on('exit', () => reject(new Error(`it ended before it served a page: ${said.stderr}`)));
  });
  return {
    url,
    origin: new URL(url).origin,
    said,
    ended,
    /** Ctrl-C, which was noticed when this is done. */
    interrupt: () =>
      new Promise((resolve) => {
        child.stderr.on('data', () => {
          if (/^stopping/m.test(said.stderr)) resolve();
        });
        child.on('exit', resolve);
        child.kill('SIGINT');
      }),
  };
}
