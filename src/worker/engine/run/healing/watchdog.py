"""Tells a core that hangs from one that computes."""

import time
from collections.abc import Iterable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from worker.engine.seam.protocols import RequestState

# What a step may take longer for each token of a prompt in it, by vLLM's device type.
PREFILL_S_PER_TOKEN = {"cpu": 0.02}
PREFILL_S_PER_TOKEN_OF_GPU = 0.002
# Seconds for a step that builds code: its compilers are processes of their own.
BUILD_S = 300.0
# This process was frozen, or very busy, if it looks so late: the core may have been, too.
LATE_S = 2.0


class Heartbeat(StatLoggerBase):  # type: ignore[misc]  # Any
    """When vLLM's core has last sent something: it does so after every step.

    vLLM takes it for a logger of statistics, which is its public way to see every message.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()

    def record(self, *_: Any, **__: Any) -> None:
        self.at = time.monotonic()

    def log_engine_initialized(self) -> None:
        """Do nothing."""


class Silence:
    """For how long requests have run without a sign of life; pure.

    The clock is ``time.monotonic``, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._since = self._looked_at = self.began_at = now

    def look(self, now: float, beat_at: float, *, busy: bool) -> float:
        """Return the seconds of silence; call it more often than every ``LATE_S``.

        ``beat_at`` is when the last sign of life came, and ``busy`` whether requests run.
        """
        if not busy or now - self._looked_at > LATE_S:
            self._since = now
        self._looked_at = now
        self.began_at = max(self._since, beat_at)
        return now - self.began_at


def prefill_s(requests: Iterable[RequestState], config: Any) -> float:
    """Return for how long a step may compute the prompts of a core's requests, in seconds."""
    tokens = sum(request.prompt_len for request in requests if request.is_prefilling)
    device = config.device_config.device_type
    in_a_step: int = min(tokens, config.scheduler_config.max_num_batched_tokens)
    return in_a_step * PREFILL_S_PER_TOKEN.get(device, PREFILL_S_PER_TOKEN_OF_GPU)
