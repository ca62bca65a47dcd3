"""Loads what the example `model_files` wrote with transformers, peft and llama.cpp, and compares logits with ours.

    cargo run --release -p osmosis-policy --example model_files MODEL DIR
    python benches/model_files.py DIR

Needs torch, transformers, peft and safetensors; llama-cpp-python for the GGUF files, which are left out without it.
"""

import json
import sys
from pathlib import Path

import numpy as np


def told(name: str, theirs: np.ndarray, ours: np.ndarray) -> None:
    apart = np.abs(theirs - ours)
    agree = float((theirs.argmax(-1) == ours.argmax(-1)).mean())
    print(
        f"{name}: logits at most {apart.max():.2e} apart, {apart.mean():.2e} on average,"
        f" of sizes up to {np.abs(ours).max():.1f}; same likeliest token: {agree:.0%}"
    )


def main() -> None:
    folder = Path(sys.argv[1])
    ids = json.loads((folder / "ids.json").read_text())
    ours = np.fromfile(folder / "logits.bin", dtype="<f4").reshape(len(ids), -1)

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def logits(model: torch.nn.Module) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].float().numpy()

    merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
    told("transformers, merged folder", logits(merged), ours)
    tokenizer = AutoTokenizer.from_pretrained(folder / "merged")
    again = tokenizer(tokenizer.decode(ids), add_special_tokens=False).input_ids
    print(f"transformers, tokenizer: {'the same ids' if again == ids else 'other ids'}")

    config = json.loads((folder / "step_1" / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    plain = logits(base)
    adapted = PeftModel.from_pretrained(base, folder / "step_1")
    told("peft, adapters beside the base", logits(adapted), ours)
    print(f"(the base alone is {np.abs(plain - ours).max():.2e} apart)")

    try:
        from llama_cpp import Llama
    except ImportError:
        print("llama-cpp-python is not installed: GGUF files were not tried")
        return
    for kind in ("f32", "f16"):
        model = Llama(str(folder / f"model-{kind}.gguf"), logits_all=True, n_ctx=256, verbose=False)
        model.eval(ids)
        told(f"llama.cpp, GGUF {kind}", np.array(model.scores[: len(ids)]), ours)
        text = tokenizer.decode(ids).encode()
        again = model.tokenize(text, add_bos=False, special=True)
        print(f"llama.cpp, tokenizer: {'the same ids' if again == ids else 'other ids'}")


if __name__ == "__main__":
    main()
