"""Tries grammars out in a process of the worker's, whose death it survives."""

import asyncio
import contextlib
import json
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import count

from worker import children
from worker.errors import EngineBusy

log = logging.getLogger(__name__)

PROCESS = "worker.engine.run.grammar.process"
# The process forks, so it must have one thread. xgrammar's import asks torch for GPUs, and that
# would initialize CUDA, which has threads of its own: with these, torch counts none, and doesn't
# ask the driver.
_ALONE = {
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

# How many results are remembered: a line of text each.
MOST_KNOWN = 2_000
# How many are tried at once, each with memory of its own; further ones wait.
AT_ONCE = 4
# The process gives way to the engine and the jobs, but is not starved.
NICENESS = 10
# Seconds for a result, besides ten times the limit: others may come first, and the process may
# have to be started.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a trial has come to: "fine", or what is wrong; and the seconds of one core it took."""

    outcome: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Grammar:
    """What is compiled: vLLM's kind, or a grammar's syntax ("ebnf", "lark"), and the text."""

    kind: str
    spec: str
    compact: bool = False  # JSON without any whitespace

    @property
    def key(self) -> bytes:
        """What it is remembered by."""
        return sha256(repr(self).encode(errors="replace")).digest()


# None: the process ended before it answered.
_Answer = asyncio.Future[Result | None]


class Trial:
    """Use on the engine's loop.

    Args:
        tokenizer: makes xgrammar's description of the tokenizer; called once, in a thread.
        limit_s: seconds of one core that a grammar may take.
    """

    def __init__(self, tokenizer: Callable[[], str], limit_s: float) -> None:
        self.limit_s = limit_s
        self._tokenizer = tokenizer
        self._description: str | None = None
        self._known: OrderedDict[bytes, Result] = OrderedDict()
        self._waiting: dict[int, _Answer] = {}
        self._numbers = count()
        self._answered = 0
        self._room = asyncio.Semaphore(AT_ONCE)
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def of(self, grammar: Grammar) -> Result:
        """Return what compiling a grammar comes to.

        Raises:
            EngineBusy: the process does not answer in time, or at all.
        """
        key = grammar.key
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        answered = self._answered
        try:
            async with asyncio.timeout(PATIENCE_S + 10 * self.limit_s):
                result = await self._asked(grammar)
        except TimeoutError:
            result = None
            if answered == self._answered:
                # The process hangs: what it has would keep its room for ever.
                await self.close()
        if result is None:
            raise EngineBusy("A structured output could not be checked in time")
        return result

    async def close(self) -> None:
        """End the process."""
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _asked(self, grammar: Grammar) -> Result | None:
        await self._room.acquire()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(self._room.release)
            process = await self.start()
            unless_started.pop_all()
        answer: _Answer = asyncio.get_running_loop().create_future()
        # Not when the caller leaves: what has begun takes its room until it ends.
        answer.add_done_callback(partial(self._end, grammar.key))
        if (known := self._known.get(grammar.key)) is not None:
            # An equal one was tried while this one waited.
            answer.set_result(known)
            return known
        number = next(self._numbers)
        self._waiting[number] = answer
        _write(process, {"number": number, "limit_s": self.limit_s, **asdict(grammar)})
        return await asyncio.shield(answer)

    def _end(self, key: bytes, answer: _Answer) -> None:
        self._room.release()
        if (result := answer.result()) is not None:
            self._known[key] = result
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    async def start(self) -> Process:
        """Start the process if there is none, or none any more; return it."""
        async with self._starting:
            if self._reader is None or self._reader.done():
                if self._description is None:
                    self._description = await asyncio.to_thread(self._tokenizer)
                # Nothing of the environment: it holds keys.
                self._process = await children.start(
                    children.module(PROCESS),
                    children.with_sources(_ALONE),
                    stdin=PIPE,
                    stdout=PIPE,
                )
                self._reader = asyncio.create_task(self._read(self._process))
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
                _write(self._process, {"tokenizer": self._description})
            assert self._process  # for the type checker: the reader has one
            return self._process

    async def _read(self, process: Process) -> None:
        assert process.stdout  # for the type checker: it is a pipe
        try:
            async for line in process.stdout:
                number, outcome, seconds = json.loads(line)
                self._waiting.pop(number).set_result(Result(outcome, seconds))
                self._answered += 1
        except (ValueError, TypeError, KeyError):
            log.exception("the process that tries grammars out has printed something else")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        log.info("the process that tries grammars out has ended")
        unanswered, self._waiting = self._waiting, {}
        for answer in unanswered.values():
            answer.set_result(None)


def _write(process: Process, message: dict[str, object]) -> None:
    """Write a message; that the process has ended is noticed by its reader."""
    assert process.stdin  # for the type checker: it is a pipe
    with contextlib.suppress(OSError, RuntimeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
