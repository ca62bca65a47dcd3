"""A method that vLLM's workers get from us, with `--worker-extension-cls`.

It runs in the environment of the inference server and imports nothing else of this package.
"""

from __future__ import annotations

from typing import Any


class WeightReloading:
    """Mixed into vLLM's worker class."""

    reload_weights: Any
    get_model: Any

    def osmosis_reload_weights(self, weights_path: str) -> None:
        """Reads all weights from a folder.

        On a CPU, vLLM multiplies with a copy of each matrix that is laid out for the processor.
        Its own reload makes new copies of the matrices that the files name. A head that is tied
        to the embeddings is not in the files, and would keep its first weights.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.reload_weights(weights_path=weights_path)
        for module in self.get_model().modules():
            if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)
