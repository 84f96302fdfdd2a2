"""Makes the steps of vLLM's engine last a fixed time; the engine imports it, not a benchmark.

    LOGITS_PROCESSORS=fixed_step:FixedStep

Otherwise several engines on a few cores would slow each other down.
"""

import time
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

STEP_S = 0.02


class FixedStep(LogitsProcessor):  # type: ignore[misc]  # vLLM ships no types that hold here
    """Changes no logits, but waits until STEP_S have passed since the previous step."""

    def __init__(self, *_: object) -> None:
        self._last = 0.0

    def is_argmax_invariant(self) -> bool:
        return False  # otherwise greedy sampling would not call it

    def update_state(self, _: object) -> None: ...

    def apply(self, logits: Any) -> Any:
        time.sleep(max(0.0, self._last + STEP_S - time.monotonic()))
        self._last = time.monotonic()
        return logits
