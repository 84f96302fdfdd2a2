"""vLLM's worker for CPUs, mended in two places; vLLM imports it by its name, in a core."""

from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker as VllmCPUWorker


class CPUWorker(VllmCPUWorker):  # type: ignore[misc]  # Any
    """Compiles nothing with ``ENFORCE_EAGER``, and samples with a seed only what a request keeps.

    vLLM compiles small functions in any case, when they are first called: seconds, in which the
    core stands still. The one that ranks log probabilities is three operations, which need no more
    memory uncompiled than a fourth of the log probabilities.

    In a step that computes a part of a prompt, vLLM samples all the same, and then turns the seeded
    generator back by what was used: no generator of a CPU can do that, and the core dies. A part is
    computed whenever a step has no room for the rest: beside other requests, too.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """Take what vLLM passes."""
        super().__init__(vllm_config, *args, **kwargs)
        if vllm_config.model_config.enforce_eager:
            torch.compiler.set_stance("force_eager")

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample a token for each request of the step."""
        runner = self.model_runner
        # vLLM's second runner, which needs Triton, samples without generators.
        discards = getattr(runner, "discard_request_mask", None)
        if discards is None:
            return super().sample_tokens(grammar_output)
        # Requests whose token of this step is thrown away sample without theirs.
        generators = runner.input_batch.generators
        idle = {row: generators.pop(row) for row in list(generators) if discards.np[row]}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(idle)
