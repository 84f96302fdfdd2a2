"""The replacement of a core that dies, hangs, or is stopped for a suspension.

``Healer.run`` watches the core. A ``SilenceTimer`` measures how long requests have run without a
message from it: beyond the time that their prompts may take, the core hangs, and is killed. After a
death the healer records the requests that may have caused it (``Suspects``), lets vLLM fail those
that ran, removes the core's processes and starts another core, up to a maximum number of times.
During a ``Suspension`` there is no core: it is killed on purpose, and the next one starts
afterwards.

Elsewhere, a dead core is known by the client's ``errored``, and each request that ran on it ends
with ``EngineDead``, which ``seam.translation`` and ``VllmServer.call`` raise. If it has sent
nothing yet, ``routes.answer.retry_before_first_piece`` sends it again, and calls
``wait_for_recovery`` before: the only suspect is refused, and several suspects enter the new core
one at a time. Events of a stream that have no content, which ``dialects.openai.forward`` holds
back, don't count as sent. When ``run`` gives up, ``InProcessEngine`` resolves ``Engines.died``, and
the worker exits.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from worker.engine.run.core import Core
from worker.engine.run.suspension import Suspension
from worker.engine.seam.protocols import RequestState
from worker.engine.seam.translation import START_ERRORS
from worker.errors import EngineDead, RequestKilledEngine, StartFailed
from worker.metrics import ENGINE_RESTARTS
from worker.process.lifetime import exiting

log = logging.getLogger(__name__)

# Exceptions when a core fails to start: vLLM's, and the worker's own.
START_FAILURES = (*START_ERRORS, StartFailed)
WATCH_INTERVAL_S = 0.1
# Seconds to wait for vLLM's output handler, which stops the rest of a dead core and then fails its
# requests.
HANDLER_TIMEOUT_S = 30.0
# Seconds for which a restart counts towards the maximum. A core that dies more often would die
# again.
RESTART_WINDOW_S = 600.0
# Seconds without a message from the core that are normal while requests run.
NORMAL_SILENCE_S = 0.3
# Share of a CPU below which a process of a core counts as idle, as if it waited for an event that
# never comes. The share is not 0, since each of gloo's dozen process groups polls its sockets.
IDLE_CPU_SHARE = 0.05
# Seconds after the core's last message. Requests that arrived by then may have been in the step
# that killed the core.
STEP_START_S = 1.0
# Maximum seconds to wait until a suspect that is sent again has reached the engine, and then until
# its first output.
ARRIVAL_TIMEOUT_S = 0.5
OUTPUT_TIMEOUT_S = 60.0
# Seconds between two polls; short, since other suspects wait until a suspect has output.
POLL_INTERVAL_S = 0.02
# Additional seconds that a step may take for each token of a prompt in it, by vLLM's device type.
PREFILL_S_PER_TOKEN = {"cpu": 0.02}
PREFILL_S_PER_TOKEN_OF_GPU = 0.002
# Maximum seconds for a step that compiles code, in other processes.
MAX_COMPILE_S = 300.0
# Maximum seconds between two updates of a ``SilenceTimer``. After a longer gap, this process was
# frozen or very busy. The core may have been frozen, too, so the timer restarts.
MAX_UPDATE_GAP_S = 2.0


class Suspects:
    """The requests that may have caused the crashes of cores.

    A request without output at the time of a crash is new. Requests are identified by vLLM's own
    ids, such as "chatcmpl-" + the caller's request id.
    """

    def __init__(self) -> None:
        # For each request that was new in the last crash: the number of such crashes in a row.
        self._new_counts: Counter[str] = Counter()
        # For each request that was unfinished in the last crash: the number of such crashes in a
        # row.
        self._running_counts: Counter[str] = Counter()

    def record_crash(self, new_ids: Iterable[str], running_ids: Iterable[str]) -> None:
        """Record a crash or a hang, with the ids of the requests without and with output."""
        self._new_counts = _count_consecutive_crashes(self._new_counts, new_ids)
        self._running_counts = _count_consecutive_crashes(
            self._running_counts, {*self._new_counts, *running_ids}
        )

    def is_killer(self, request_id: str) -> bool:
        """Return whether this request alone is the most likely cause of the last crash."""
        top_suspects = self._top_suspect_ids
        return len(top_suspects) == 1 and is_id_of_request(top_suspects[0], request_id)

    def is_suspect(self, request_id: str) -> bool:
        """Return whether this request is one of the most likely causes of the last crash."""
        return any(is_id_of_request(id_, request_id) for id_ in self._top_suspect_ids)

    @property
    def _top_suspect_ids(self) -> list[str]:
        """The requests that were new in the most crashes in a row.

        If none was new: those that were unfinished in the most crashes in a row, in at least two.
        """
        repeated = {id_: count for id_, count in self._running_counts.items() if count > 1}
        counts = self._new_counts or repeated
        highest = max(counts.values(), default=0)
        return [id_ for id_, count in counts.items() if count == highest]


def _count_consecutive_crashes(previous: Counter[str], ids: Iterable[str]) -> Counter[str]:
    return Counter({id_: previous[id_] + 1 for id_ in ids})


def is_id_of_request(engine_id: str, request_id: str) -> bool:
    """Return whether vLLM's id is the id of a caller's request, or of a part of it."""
    prefix, match, suffix = engine_id.partition(request_id)
    return bool(match) and prefix[-1:] in ("", "-", "_") and suffix[:1] in ("", "-", "_")


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


class Healer:
    """Replaces an engine's core whenever it dies or hangs. Use on the engine's loop.

    ``name`` is the model's, for the log. ``start_core`` is called in a thread; ``use_core`` builds
    everything that depends on a core. ``max_restarts`` are within ``RESTART_WINDOW_S``; ``hang_s``
    seconds of silence count as a hang, 0 disables the detection.
    """

    def __init__(
        self,
        name: str,
        core: Core,
        start_core: Callable[[], Core],
        use_core: Callable[[Core], Awaitable[None]],
        *,
        max_restarts: int,
        hang_s: float,
    ) -> None:
        self.core = core
        self._name = name
        self._start_core = start_core
        self._use_core = use_core
        self._max_restarts, self._hang_s = max_restarts, hang_s
        # Times of the restarts, by ``time.monotonic``.
        self._restart_times: deque[float] = deque()
        self._suspects = Suspects()
        # Suspects enter the engine one at a time: ``_last_suspect`` awaits the last one's output.
        self._suspect_lock = asyncio.Lock()
        self._last_suspect: asyncio.Task[None] | None = None
        self._has_given_up = False
        self.suspension = Suspension()
        # The core that was killed for a suspension.
        self._suspended_core: Core | None = None

    @property
    def is_dead(self) -> bool:
        """See ``BaseModelHandle.is_dead``."""
        return self.core.client.errored and not self.suspension.is_active

    async def run(self) -> None:
        try:
            while True:
                core, silence = self.core, SilenceTimer(time.monotonic())
                has_hung = await self._watch_until_dead(silence)
                is_suspended, self._suspended_core = core is self._suspended_core, None
                if not is_suspended and (has_hung or await asyncio.to_thread(core.has_crashed)):
                    # Requests that arrived early enough may have been in the core's last step.
                    new_ids = core.prefilling_request_ids(silence.started_at + STEP_START_S)
                    self._suspects.record_crash(new_ids, core.decoding_request_ids)
                if handler := core.client.output_handler:
                    # Let vLLM's handler fail the running requests: a shutdown would cancel it.
                    await asyncio.wait([handler], timeout=HANDLER_TIMEOUT_S)
                    del handler  # a cancelled task refers to the state of the dead core's requests
                reason: str | None = await core.fail_calls_and_close()
                if is_suspended:
                    reason = None
                elif has_hung:
                    reason = "it hung"
                await self.suspension.vacate_until_resumed()
                if not await self._replace_core(reason):
                    return
        finally:
            self._has_given_up = True

    async def _watch_until_dead(self, silence: SilenceTimer) -> bool:
        """Wait for the core's death, and kill the core if it hangs; return whether it hung."""
        core, has_hung, cpu_time_before = self.core, False, 0.0
        while not core.client.errored:
            await asyncio.sleep(WATCH_INTERVAL_S)
            is_busy = core.client.output_processor.has_unfinished_requests()
            silent_s = silence.update_and_get_silence(
                time.monotonic(), core.heartbeat.last_at, is_busy=is_busy
            )
            if silent_s < NORMAL_SILENCE_S:
                cpu_time_before = 0.0
                continue
            cpu_time_before = cpu_time_before or core.cpu_time_s
            if not has_hung and self._is_hanging(silent_s, core.cpu_time_s - cpu_time_before):
                has_hung = True
                log.error(
                    "the engine of %s has made no progress for %.1f s, and is killed",
                    self._name,
                    silent_s,
                )
                await asyncio.to_thread(core.kill)
        return has_hung

    def _is_hanging(self, silent_s: float, cpu_time_s: float) -> bool:
        """Return whether the core hangs, after ``silent_s`` seconds without a sign of life.

        ``cpu_time_s`` is the CPU time used after the first ``NORMAL_SILENCE_S`` of the silence.
        """
        if not self._hang_s or silent_s < self._hang_s:
            return False
        core = self.core
        if core.is_paused:
            return True
        limit_s = self._hang_s + max_prefill_s(core.unfinished_requests, core.client.vllm_config)
        # On an overloaded machine the core needs longer for the same step. So the core hangs only
        # if it is idle, or has used more CPU time than the step may take.
        is_idle = cpu_time_s < IDLE_CPU_SHARE * silent_s * core.initial_process_count
        if silent_s < limit_s or not (is_idle or cpu_time_s + NORMAL_SILENCE_S >= limit_s):
            return False
        return silent_s > MAX_COMPILE_S or not core.is_compiling

    async def _replace_core(self, reason: str | None) -> bool:
        """Start another core; return False if that is impossible, or was necessary too often.

        ``reason`` is None if the core was stopped on purpose, which doesn't count as a restart.
        """
        died_at = time.monotonic()
        while True:
            if exiting.is_set():
                # Nothing else should react to the death, as an engine's death ends the process.
                await asyncio.get_running_loop().create_future()
            if reason is not None:
                now = time.monotonic()
                while self._restart_times and now - self._restart_times[0] > RESTART_WINDOW_S:
                    self._restart_times.popleft()
                if len(self._restart_times) >= self._max_restarts:
                    log.error("the engine of %s died: %s; it is not restarted", self._name, reason)
                    return False
                self._restart_times.append(now)
                ENGINE_RESTARTS.inc()
                log.error("the engine of %s died: %s; restarting it", self._name, reason)
            core = None
            try:
                core = await asyncio.to_thread(self._start_core)
                await self._use_core(core)
            except START_FAILURES as error:
                reason = str(error)
                if core:
                    await core.fail_calls_and_close()
            else:
                self.core = core
                seconds = time.monotonic() - died_at
                log.info("the engine of %s has restarted after %.1f s", self._name, seconds)
                return True

    @contextlib.asynccontextmanager
    async def suspend(self, wait_timeout_s: float, drain_timeout_s: float) -> AsyncIterator[None]:
        """Stop the core during the block, and restart it afterwards (see ``Engine.suspend``)."""
        try:
            async with self.suspension.suspend(wait_timeout_s):
                deadline = time.monotonic() + drain_timeout_s
                # ``run`` removes the core that is killed here, and then the engine is vacant.
                while not self.suspension.is_vacant:
                    if self._has_given_up:
                        raise EngineDead
                    core = self.core
                    if not core.client.errored and (core.is_idle or time.monotonic() > deadline):
                        self._suspended_core = core
                        await asyncio.to_thread(core.kill)
                    await asyncio.sleep(WATCH_INTERVAL_S)
                log.info("the engine of %s is suspended", self._name)
                yield
        finally:
            with contextlib.suppress(EngineDead):
                await self._wait_until_alive()

    async def wait_for_recovery(self, request_id: str) -> None:
        await self.suspension.wait_until_resumed()
        await self._wait_until_alive()
        if self._suspects.is_killer(request_id):
            raise RequestKilledEngine
        if self._suspects.is_suspect(request_id):
            async with self._suspect_lock:
                if self._last_suspect:
                    await asyncio.wait([self._last_suspect])
                self._last_suspect = asyncio.create_task(self._wait_for_first_output(request_id))

    async def _wait_until_alive(self) -> None:
        while self.is_dead:
            if self._has_given_up:
                raise EngineDead
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _wait_for_first_output(self, request_id: str) -> None:
        """Wait, with a timeout, for a suspect's first output or end, or for the core's death."""
        core, client = self.core, self.core.client

        def prefill_flags() -> list[bool]:
            return [
                request.is_prefilling
                for request in core.unfinished_requests
                if is_id_of_request(request.external_req_id, request_id)
            ]

        # If a core died while this request waited for its turn, it may no longer be a suspect.
        if self._suspects.is_suspect(request_id):
            await _poll_until(lambda: client.errored or bool(prefill_flags()), ARRIVAL_TIMEOUT_S)
            await _poll_until(lambda: client.errored or not any(prefill_flags()), OUTPUT_TIMEOUT_S)


async def _poll_until(condition: Callable[[], bool], timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(POLL_INTERVAL_S)
