"""vLLM's worker for CPUs with two fixes; vLLM imports this module by name, in the engine core."""

from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker as VllmCPUWorker


class CPUWorker(VllmCPUWorker):  # type: ignore[misc]  # Any
    """vLLM's worker that compiles nothing with ``ENFORCE_EAGER``, and never rewinds generators.

    Even with ``ENFORCE_EAGER``, vLLM compiles small functions on their first call, which blocks the
    core for seconds. The function that ranks log probabilities consists of three operations, which
    need additional memory of at most a fourth of the log probabilities if they are not compiled.

    In a step that computes a part of a prompt, vLLM samples a token anyway, and then rewinds the
    request's seeded random generator. Generators of a CPU can't be rewound, and the core dies. A
    step computes a part whenever it has no capacity for the rest, also because of other requests.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        if vllm_config.model_config.enforce_eager:
            torch.compiler.set_stance("force_eager")

    def sample_tokens(self, grammar_output: Any) -> Any:
        runner = self.model_runner
        # vLLM's second runner, which needs Triton, samples without random generators.
        discards = getattr(runner, "discard_request_mask", None)
        if discards is None:
            return super().sample_tokens(grammar_output)
        # Requests whose token of this step is discarded sample without their generators.
        generators = runner.input_batch.generators
        idle = {row: generators.pop(row) for row in list(generators) if discards.np[row]}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(idle)
