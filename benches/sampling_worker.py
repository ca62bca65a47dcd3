"""Samples batches of prompts with vLLM or llama.cpp. A part of `sampling_peers.py`, for a Python that has it.

    python sampling_worker.py vllm FOLDER BATCH CONTEXT
    python sampling_worker.py llama FILE.gguf BATCH CONTEXT

CONTEXT is the most tokens of a prompt with its answer. Reads one JSON object per line (`prompts`: lists of token ids,
`answer`: tokens of each answer, `greedy`) and prints one for each: `seconds` from the first prompt to the last token,
`sampled`, `prompt_tokens` that were read, and with `greedy` the `ids`. The example `sampling_rate lines` does the same
for our sampler.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

THREADS = 2
Batches = Callable[[list[list[int]], int, bool], dict[str, Any]]


def vllm(model: str, batch: int, context: int) -> tuple[Batches, dict[str, Any]]:
    """Offline, in this process, in float32, without a prefix cache: every prompt is read."""
    import vllm as package
    from vllm import LLM, SamplingParams

    config = json.loads(pathlib.Path(model, "config.json").read_text())
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    per_token = 2 * 4 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * width
    # Blocks of 128 tokens, and some more: what a batch takes, not what the machine has.
    blocks = batch * (context // 128 + 1) + 8
    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=os.environ.get("SAMPLING_PEERS_COMPILED") != "1",
        enable_prefix_caching=False,
        max_model_len=context,
        max_num_seqs=batch,
        kv_cache_memory_bytes=blocks * 128 * per_token,
        seed=1,
    )

    def run(prompts: list[list[int]], answer: int, greedy: bool) -> dict[str, Any]:
        # Text is not made: nobody else here makes it either. The logprob of each sampled token only if asked for.
        settings = SamplingParams(
            temperature=0.0 if greedy else 1.0,
            max_tokens=answer,
            ignore_eos=True,
            detokenize=False,
            logprobs=0 if os.environ.get("SAMPLING_PEERS_LOGPROBS") == "1" else None,
        )
        began = time.perf_counter()
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        seconds = time.perf_counter() - began
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return {
            "seconds": seconds,
            "sampled": sum(map(len, answers)),
            "prompt_tokens": sum(map(len, prompts)) - cached,
            "ids": answers if greedy else None,
        }

    import torch

    about = {"version": f"vLLM {package.__version__}, torch {torch.__version__}", "threads": torch.get_num_threads()}
    return run, about


def llama(model: str, batch: int, context: int) -> tuple[Batches, dict[str, Any]]:
    """All sequences in one `llama_batch`, each with a cache of its own; sampled by llama.cpp's own sampler."""
    import llama_cpp as lib
    import numpy as np

    silence = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silence, None)
    lib.llama_backend_init()
    loaded = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
    assert loaded, f"{model} was not loaded"
    settings = lib.llama_context_default_params()
    settings.n_ctx = batch * context
    settings.n_seq_max = batch
    settings.n_threads = settings.n_threads_batch = THREADS
    settings.no_perf = True
    if "f32" in os.path.basename(model):
        # Its default are half floats, whatever the weights are.
        settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    opened = lib.llama_init_from_model(loaded, settings)
    assert opened, "no context"
    memory = lib.llama_get_memory(opened)
    most = lib.llama_n_batch(opened)
    tokens = lib.llama_batch_init(most, 0, 1)
    # Views of its arrays: filling them one by one in Python would be part of what is measured.
    token, position, count, wanted = (
        np.ctypeslib.as_array(array, (most,)) for array in (tokens.token, tokens.pos, tokens.n_seq_id, tokens.logits)
    )
    count[:] = 1
    numbers = np.arange(batch, dtype=np.int32)
    # Whose each token is: pointers, into `numbers`.
    owner = np.ctypeslib.as_array(ctypes.cast(tokens.seq_id, ctypes.POINTER(ctypes.c_uint64)), (most,))
    owners = numbers.ctypes.data + 4 * np.arange(batch, dtype=np.uint64)
    samplers = []
    for seed in range(batch):
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(1.0))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(seed))
        samplers.append(chain)
    greediest = lib.llama_sampler_init_greedy()
    inside = [0.0, 0.0]

    def decode(size: int) -> None:
        tokens.n_tokens = size
        began = time.perf_counter()
        failed = lib.llama_decode(opened, tokens)
        # It may return before the numbers are there.
        lib.llama_synchronize(opened)
        inside[0] += time.perf_counter() - began
        assert failed == 0, f"llama_decode: {failed}"

    def sample(sampler: Any, place: int) -> int:
        began = time.perf_counter()
        chosen = lib.llama_sampler_sample(sampler, opened, place)
        inside[1] += time.perf_counter() - began
        return chosen

    def run(prompts: list[list[int]], answer: int, greedy: bool) -> dict[str, Any]:
        chosen_by = [greediest] * len(prompts) if greedy else samplers
        inside[:] = [0.0, 0.0]
        began = time.perf_counter()
        lib.llama_memory_clear(memory, True)
        answers: list[list[int]] = [[] for _ in prompts]
        last = np.zeros(len(prompts), dtype=np.int32)
        # As many whole prompts at once as a batch holds.
        at_once = max(1, most // max(map(len, prompts)))
        for first in range(0, len(prompts), at_once):
            some = range(first, min(first + at_once, len(prompts)))
            size, ends = 0, []
            for sequence in some:
                ids = prompts[sequence]
                part = slice(size, size + len(ids))
                token[part] = ids
                position[part] = np.arange(len(ids))
                owner[part] = owners[sequence]
                wanted[part] = 0
                size += len(ids)
                wanted[size - 1] = 1
                ends.append(size - 1)
            decode(size)
            for sequence, end in zip(some, ends, strict=True):
                last[sequence] = sample(chosen_by[sequence], end)
                answers[sequence].append(int(last[sequence]))
        lengths = np.array([len(ids) for ids in prompts], dtype=np.int32)
        size = len(prompts)
        owner[:size] = owners[:size]
        wanted[:size] = 1
        for step in range(answer - 1):
            token[:size] = last
            position[:size] = lengths + step
            decode(size)
            for sequence in range(size):
                last[sequence] = sample(chosen_by[sequence], sequence)
                answers[sequence].append(int(last[sequence]))
        return {
            "seconds": time.perf_counter() - began,
            "sampled": sum(map(len, answers)),
            "prompt_tokens": int(lengths.sum()),
            "decoding": inside[0],
            "sampling": inside[1],
            "ids": answers if greedy else None,
        }

    # C has pointers to these, and nothing in Python would keep them.
    run.kept = (silence, numbers)  # type: ignore[attr-defined]
    about = {
        "version": f"llama-cpp-python {lib.__version__}",
        "threads": lib.llama_n_threads(opened),
        "system": " ".join(lib.llama_print_system_info().decode().split()),
    }
    return run, about


def main() -> None:
    kind, model, batch, context = sys.argv[1:5]
    # Replies go where the output went; what the packages print goes to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run, about = {"vllm": vllm, "llama": llama}[kind](model, int(batch), int(context))
    print(json.dumps({"ready": True, **about}), file=replies, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        reply = run(asked["prompts"], asked["answer"], asked.get("greedy", False))
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
