"""Makes the steps of vLLM's engine last a fixed time; imported by the engine, not by a benchmark.

    LOGITS_PROCESSORS=loop_parts.steps:FixedStep

Several engines on few cores would otherwise slow each other down.
"""

import time
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

STEP_S = 0.02


class FixedStep(LogitsProcessor):  # type: ignore[misc]  # vLLM ships no types that hold here
    """Changes nothing, but waits until STEP_S have passed since the step before."""

    def __init__(self, *_: object) -> None:
        self._last = 0.0

    def is_argmax_invariant(self) -> bool:
        return False  # or greedy sampling would not call it

    def update_state(self, _: object) -> None: ...

    def apply(self, logits: Any) -> Any:
        time.sleep(max(0.0, self._last + STEP_S - time.monotonic()))
        self._last = time.monotonic()
        return logits
