"""Charges each request of the engines for its share of the GPUs' time.

The GPUs compute all running requests together, so that no request has a time of its own. While n
requests are in the engines, each of them is charged 1/n of the passing time (processor sharing).
All shares together are the time in which the engines had any request.
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from worker.engine.seam.patches import REQUEST_STATES
from worker.engine.seam.protocols import Client, RequestState
from worker.record import EngineUse, engine_use


class GpuTime:
    """The time that the engines of a worker, which share its GPUs, spend on requests. Thread-safe.

    It is a clock that advances by 1/n seconds a second while there are n requests. A request's
    share is the difference between two readings, so that a start or an end of a request takes
    constant time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._requests = 0
        self._updated_at = now()
        self._shared_s = 0.0
        self._busy_s = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds in which there was at least one request."""
        with self._lock:
            self._advance()
            return self._busy_s

    def start_request(self) -> float:
        """Count a request; return the reading of the clock at its start."""
        with self._lock:
            self._advance()
            self._requests += 1
            return self._shared_s

    def end_request(self, started_at: float) -> float:
        """Stop counting a request; return its share in seconds.

        ``started_at`` is the value that ``start_request`` returned for it.
        """
        with self._lock:
            self._advance()
            self._requests -= 1
            return self._shared_s - started_at

    def _advance(self) -> None:
        now = self._now()
        if self._requests:
            self._busy_s += now - self._updated_at
            self._shared_s += (now - self._updated_at) / self._requests
        self._updated_at = now


class BusyCollector(Collector):
    """The metric of the GPUs' busy time, which the shares of all requests add up to."""

    def __init__(self, gpu_time: GpuTime) -> None:
        self._gpu_time = gpu_time

    def collect(self) -> Iterator[Metric]:
        description = "Time in which the engines had any request."
        yield CounterMetricFamily("worker_engine_busy_seconds", description, self._gpu_time.busy_s)


# All engines of the worker share its GPUs.
GPU_TIME = GpuTime()
REGISTRY.register(BusyCollector(GPU_TIME))


class ChargedRequests(dict[str, RequestState]):
    """The unfinished requests of a core by vLLM's id, each charged to the job that sent it.

    Replaces the dict of vLLM's output processor. A request enters it when it is sent to the core,
    and leaves it when it ends in any way. The several choices of a request are entries of their
    own, and so are the beams of a beam search.
    """

    def __init__(self, client: Client, gpu_time: GpuTime = GPU_TIME) -> None:
        super().__init__(client.output_processor.request_states)
        self._gpu_time = gpu_time
        parallel = client.vllm_config.parallel_config
        self._gpu_count: int = parallel.world_size * parallel.data_parallel_size
        if client.vllm_config.device_config.device_type == "cpu":
            self._gpu_count = 1
        self._model: str = client.vllm_config.model_config.served_model_name
        self._end_functions: dict[str, Callable[[], None]] = {}
        REQUEST_STATES.replace(client.output_processor, self)

    def __setitem__(self, request_id: str, state: RequestState) -> None:
        """Add a request; vLLM calls this in the context of the job that sends it."""
        super().__setitem__(request_id, state)
        use = engine_use.get(None) or EngineUse()
        charge = partial(self._charge, use, state, self._gpu_time.start_request())
        self._end_functions[request_id] = use.start_request(charge)

    def pop(self, request_id: str, *default: RequestState | None) -> RequestState | None:  # type: ignore[override]  # only vLLM calls it, in these forms
        if end := self._end_functions.pop(request_id, None):
            end()
        return super().pop(request_id, *default)

    def _charge(self, use: EngineUse, state: RequestState, started_at: float) -> None:
        gpu_seconds = self._gpu_count * self._gpu_time.end_request(started_at)
        stats = state.stats
        use.add(
            EngineUse(
                model=state.lora_name or self._model,
                # The choices of a request have the same prompt.
                prompt_tokens=state.prompt_len if state.request_index == 0 else 0,
                cached_tokens=state.num_cached_tokens if state.request_index == 0 else 0,
                output_tokens=stats.num_generation_tokens,
                # vLLM 0.29 does not count them.
                preemptions=getattr(stats, "num_preemptions", 0),
                computed_from=stats.scheduled_ts or None,
                first_token_at=stats.first_token_ts or None,
                gpu_seconds=gpu_seconds,
            )
        )
