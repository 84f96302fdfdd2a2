"""Watches a core, and starts another in its place when it dies, hangs, or was set aside."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from worker.engine.run.healing.absence import Absence
from worker.engine.run.healing.core import Core
from worker.engine.run.healing.suspects import Suspects, belongs
from worker.engine.run.healing.watchdog import BUILD_S, Silence, prefill_s
from worker.engine.seam.translation import START_ERRORS
from worker.errors import EngineDead, KilledEngine, StartFailed

log = logging.getLogger(__name__)

# What a core that does not start raises: vLLM, or the worker in words of its own.
FAILURES = (*START_ERRORS, StartFailed)
WATCH_INTERVAL_S = 0.1
# vLLM stops what is left of a dead core first, and waits for that.
HANDLER_ENDS_S = 30.0
# Restarts are counted for so long: a core that dies more often will die again.
RESTARTS_COUNT_S = 600.0
# Seconds of silence that are nothing unusual.
SILENT_S = 0.3
# A core's process that waits for what never comes uses less than this share of a processor. It is
# not 0: each of gloo's groups of processes, of which there are a dozen, looks at its sockets.
WAITS = 0.05
# Seconds after the last sign of life in which a request may still get into the next step.
STEP_S = 1.0
# Seconds until the engine knows a request that begins, and until its first output at the latest.
APPEARS_S = 0.5
SETTLES_S = 60.0
# All others that may have killed a core wait while one begins.
LOOKS_S = 0.02


class Healer:
    """Keeps an engine answering. Use on the engine's loop.

    Args:
        name: the model's, for the log.
        core: the first one.
        start: starts another one; called in a thread.
        use: builds on it everything that depends on a core.
        restarts: how many there may be within ``RESTARTS_COUNT_S``.
        hang_s: seconds of a hang; 0: none is noticed.
    """

    def __init__(
        self,
        name: str,
        core: Core,
        start: Callable[[], Core],
        use: Callable[[Core], Awaitable[None]],
        *,
        restarts: int,
        hang_s: float,
    ) -> None:
        self.core = core
        self._name = name
        self._start = start
        self._use = use
        self._most_restarts, self._hang_s = restarts, hang_s
        # When there were some, by ``time.monotonic``.
        self._restarts: deque[float] = deque()
        self._suspects = Suspects()
        # Requests that may have killed a core begin one after the other; this is the last one.
        self._turn = asyncio.Lock()
        self._beginning: asyncio.Task[None] | None = None
        self._given_up = False
        self.absence = Absence()
        # The core that was ended to make room.
        self._dismissed: Core | None = None

    @property
    def dead(self) -> bool:
        """See ``Base.dead``."""
        return self.core.client.errored and not self.absence.lasts

    async def run(self) -> None:
        """Replace the core whenever it dies or hangs; return when that is not possible any more."""
        try:
            while True:
                silence = Silence(time.monotonic())
                hung = await self._until_dead(silence)
                reason = await self._bury(silence.began_at, hung=hung)
                await self.absence.kept()
                if not await self._replace(reason):
                    return
        finally:
            self._given_up = True

    @contextlib.asynccontextmanager
    async def aside(self, patience_s: float, drain_s: float) -> AsyncIterator[None]:
        """See ``Engines.aside``."""
        try:
            async with self.absence.begun(patience_s):
                await self._vacate(time.monotonic() + drain_s)
                log.info("the engine of %s is set aside", self._name)
                yield
        finally:
            with contextlib.suppress(EngineDead):
                await self._until_back()

    async def _vacate(self, drained_at: float) -> None:
        """End the core when no request runs, or at a time, and wait until nothing is left of it.

        Raises:
            EngineDead: it died before, and is not started again.
        """
        while not self.absence.vacant:
            if self._given_up:
                raise EngineDead
            core = self.core
            if not core.client.errored and (core.idle or time.monotonic() > drained_at):
                self._dismissed = core
                await asyncio.to_thread(core.kill)
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def back(self, request_id: str) -> None:
        """See ``Engine.back``."""
        await self.absence.admit()
        await self._until_back()
        if self._suspects.is_killer(request_id):
            raise KilledEngine
        if self._suspects.is_suspect(request_id):
            async with self._turn:
                if self._beginning:
                    await asyncio.wait([self._beginning])
                self._beginning = asyncio.create_task(self._until_begun(request_id))

    async def _until_back(self) -> None:
        while self.dead:
            if self._given_up:
                raise EngineDead
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _until_begun(self, request_id: str) -> None:
        """Wait until a suspect has output, or is gone."""
        core = self.core

        def is_new() -> list[bool]:
            """Return for each part of the request that the engine has whether it has no output."""
            return [
                request.is_prefilling
                for request in core.requests
                if belongs(request.external_req_id, request_id)
            ]

        # A core that died while this one waited did not have it: it is no suspect any more.
        if self._suspects.is_suspect(request_id):
            await _until(lambda: core.client.errored or bool(is_new()), APPEARS_S)
            await _until(lambda: core.client.errored or not any(is_new()), SETTLES_S)

    async def _until_dead(self, silence: Silence) -> bool:
        """Wait for the core's death; end it if it hangs, and return whether it did."""
        core, hung, used_before = self.core, False, 0.0
        while not core.client.errored:
            await asyncio.sleep(WATCH_INTERVAL_S)
            busy = core.client.output_processor.has_unfinished_requests()
            silent_s = silence.look(time.monotonic(), core.heartbeat.at, busy=busy)
            if silent_s < SILENT_S:
                used_before = 0.0
                continue
            used_before = used_before or core.processor_s
            if not hung and self._hangs(silent_s, core.processor_s - used_before):
                hung = True
                log.error(
                    "the engine of %s has not moved for %.1f s: it is ended", self._name, silent_s
                )
                await asyncio.to_thread(core.kill)
        return hung

    def _hangs(self, silent_s: float, used_s: float) -> bool:
        """Tell whether the core hangs.

        Args:
            silent_s: seconds without a sign of life.
            used_s: seconds of a processor that it has used after the first ``SILENT_S`` of them.
        """
        if not self._hang_s or silent_s < self._hang_s:
            return False
        core = self.core
        if core.stopped:
            return True
        patience_s = self._hang_s + prefill_s(core.requests, core.client.vllm_config)
        # On a machine that is too busy the core needs longer for the same step.
        waits = used_s < WAITS * silent_s * core.processes
        if silent_s < patience_s or not (waits or used_s + SILENT_S >= patience_s):
            return False
        return silent_s > BUILD_S or not core.builds

    async def _bury(self, step_began_at: float, *, hung: bool) -> str | None:
        """Remove what a dead core has left; return why it died, None: it was dismissed."""
        core = self.core
        dismissed, self._dismissed = core is self._dismissed, None
        if not dismissed and (hung or await asyncio.to_thread(core.crashed)):
            self._suspects.crashed(core.newcomers(step_began_at + STEP_S), core.running)
        if handler := core.client.output_handler:
            # It fails the requests that run. A shutdown would cancel it.
            await asyncio.wait([handler], timeout=HANDLER_ENDS_S)
        reason = await core.remove()
        if dismissed:
            return None
        return "it hung" if hung else reason

    async def _replace(self, reason: str | None) -> bool:
        """Start another core; return False if that is not possible, or was necessary too often.

        No restart is counted without a reason.
        """
        died_at = time.monotonic()
        while reason is None or self._may_restart():
            if reason is not None:
                log.error("the engine of %s died: %s: it is started again", self._name, reason)
            core = None
            try:
                core = await asyncio.to_thread(self._start)
                await self._use(core)
            except FAILURES as error:
                reason = str(error)
                if core:
                    await core.remove()
            else:
                self.core = core
                seconds = time.monotonic() - died_at
                log.info("the engine of %s is back after %.1f s", self._name, seconds)
                return True
        log.error("the engine of %s died: %s: it is not started again", self._name, reason)
        return False

    def _may_restart(self) -> bool:
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTARTS_COUNT_S:
            self._restarts.popleft()
        if len(self._restarts) >= self._most_restarts:
            return False
        self._restarts.append(now)
        return True


async def _until(holds: Callable[[], bool], most_s: float) -> None:
    """Look until something holds, but no longer than so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            while not holds():  # noqa: ASYNC110 - vLLM offers nothing to wait for
                await asyncio.sleep(LOOKS_S)
