"""Runs the steps of a proof, and records their figures and failures."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proof.machine.plan import Session
from proof.machine.result import Failure, Proof, headline
from proof.measure.comparison import Round
from proof.measure.processes import Lost
from proof.measure.sides import HttpSide, Output

# Maximum seconds of a step.
STEP_S = 900.0


@dataclass
class Run:
    """A run of a proof, which prints a line for each step."""

    proof: Proof
    model: Path
    total: int
    number: int = 0
    began: float = field(default_factory=time.monotonic)

    async def run(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            try:
                async with AsyncExitStack() as stack:
                    await self._perform(session, stack)
            except Exception as error:  # noqa: BLE001 - the next session runs, whatever failed
                self._fail(session.side, f"end of: {session.name}", error, Output())
        self.proof.seconds = time.monotonic() - self.began

    async def _perform(self, session: Session, stack: AsyncExitStack) -> None:
        # If the start fails, it stays None, and each step is recorded as lost.
        side: HttpSide | None = None
        async with self._step(session.side, session.name, Output()):
            starting = session.start(self.model, session.conditions)
            side = started = await stack.enter_async_context(starting)
            if session.is_reported:
                figures = {session.name: {"first_s": started.first_s}}
                self._record(session.side, Round(figures, phases=started.output.phases))
        for name, step in session.steps.items():
            async with self._step(session.side, name, side.output if side else Output()):
                if side is None or side.process.returncode is not None:
                    raise Lost("the side is not running")
                self._record(session.side, await step(side))

    def _record(self, side: str, measured: Round) -> None:
        if measured.figures:
            self.proof.rounds[side].append(measured)
            print(headline(measured.figures), end="", flush=True)

    @asynccontextmanager
    async def _step(self, side: str, name: str, output: Output) -> AsyncIterator[None]:
        """Print a step's number, and its duration; record its failure instead of raising it."""
        self.number += 1
        began = time.monotonic()
        print(f"[{self.number:2}/{self.total}] {side}: {name:24} ", end="", flush=True)
        try:
            async with asyncio.timeout(STEP_S):
                yield
        except Exception as error:  # noqa: BLE001 - a failed step is a row of the page, whatever failed
            self._fail(side, name, error, output)
        print(f" ({time.monotonic() - began:.0f} s)", flush=True)

    def _fail(self, side: str, name: str, error: Exception, output: Output) -> None:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        text = " ".join(str(cause).split())
        if isinstance(cause, TimeoutError):
            reason = "it took too long"
        else:
            reason = (text if isinstance(cause, Lost) else f"{type(cause).__name__}: {text}")[:300]
        lines = error.output if isinstance(error, Lost) else []
        failure = Failure(side, name, reason, lines or list(output.last_lines))
        self.proof.failures.append(failure)
        print(f"failed: {reason}", end="")
