"""Measurements that distinguish a core that hangs from a core that computes."""

import time
from collections.abc import Iterable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from worker.engine.seam.protocols import RequestState

# Additional seconds that a step may take for each token of a prompt in it, by vLLM's device type.
PREFILL_S_PER_TOKEN = {"cpu": 0.02}
PREFILL_S_PER_TOKEN_OF_GPU = 0.002
# Maximum seconds for a step that compiles code, in other processes.
MAX_COMPILE_S = 300.0
# Maximum seconds between two updates of a ``SilenceTimer``. After a longer gap, this process was
# frozen or very busy. The core may have been frozen, too, so the timer restarts.
MAX_UPDATE_GAP_S = 2.0


class Heartbeat(StatLoggerBase):  # type: ignore[misc]  # Any
    """The time of the last message from vLLM's core, which sends one after every step.

    vLLM uses this object as a logger of statistics, its public way to observe every message.
    """

    def __init__(self) -> None:
        self.last_at = time.monotonic()

    def record(self, *_: Any, **__: Any) -> None:
        self.last_at = time.monotonic()

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM requires this method."""


class SilenceTimer:
    """Measures how long requests have run without a sign of life from the core.

    All times are by ``time.monotonic``, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._since = self._updated_at = self.started_at = now

    def update_and_get_silence(self, now: float, last_beat_at: float, *, is_busy: bool) -> float:
        """Return the seconds of silence until ``now``.

        Call at least every ``MAX_UPDATE_GAP_S``: the timer restarts after a longer gap, while no
        request runs, and at each sign of life (``last_beat_at``).
        """
        if not is_busy or now - self._updated_at > MAX_UPDATE_GAP_S:
            self._since = now
        self._updated_at = now
        self.started_at = max(self._since, last_beat_at)
        return now - self.started_at


def max_prefill_s(requests: Iterable[RequestState], config: Any) -> float:
    """Return the seconds that a step may take to compute the prompts of a core's requests."""
    tokens = sum(request.prompt_len for request in requests if request.is_prefilling)
    device = config.device_config.device_type
    tokens_per_step: int = min(tokens, config.scheduler_config.max_num_batched_tokens)
    return tokens_per_step * PREFILL_S_PER_TOKEN.get(device, PREFILL_S_PER_TOKEN_OF_GPU)
