"""Trial of grammars in a separate process, so that the worker survives a crash."""

import asyncio
import contextlib
import json
import logging
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

PROCESS_MODULE = "worker.engine.run.grammar.process"
# The process forks, so it must have a single thread. When xgrammar is imported, it queries torch
# for GPUs, which would initialize CUDA and start further threads. With these variables, torch finds
# no GPU and doesn't query the driver.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

# Maximum number of results to cache; each is small.
MAX_RESULTS = 2_000
# Maximum number of grammars to try concurrently, since each trial needs memory of its own.
MAX_CONCURRENT = 4
# Seconds to wait for a result, in addition to ten times the limit: other grammars may come first,
# and the process may have to start.
BASE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of a trial: "fine" or a problem."""

    outcome: str
    seconds: float = 0.0  # of CPU time to compile; 0 if not compiled
    step_s: float = 0.0  # CPU seconds for each token, of one choice
    place: str = ""  # the tool and the property with the problem, if known


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar to compile, such as a JSON schema or a regular expression."""

    kind: str  # vLLM's kind of constraint, or the syntax of a grammar ("ebnf", "lark")
    spec: str
    compact: bool = False  # whether the output is JSON without whitespace

    @property
    def cache_key(self) -> bytes:
        return sha256(repr(self).encode(errors="replace")).digest()


# The future result of a trial; None if the process exits before it has a result.
_ResultFuture = asyncio.Future[TrialResult | None]


class GrammarTester:
    """Test-compiles grammars in a separate process, and caches results. Use on the engine's loop.

    ``describe_tokenizer`` returns xgrammar's description of it, and is called in a thread.
    ``limit_s`` are seconds of CPU time for the trial of a grammar.
    """

    def __init__(self, describe_tokenizer: Callable[[], str], limit_s: float) -> None:
        self.limit_s = limit_s
        self._describe_tokenizer = describe_tokenizer
        self._results: OrderedDict[bytes, TrialResult] = OrderedDict()
        self._futures: dict[int, _ResultFuture] = {}
        self._numbers = count()
        self._result_count = 0
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._start: asyncio.Task[Process] | None = None
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def try_grammar(self, grammar: Grammar) -> TrialResult:
        key = grammar.cache_key
        if (result := self._results.get(key)) is not None:
            self._results.move_to_end(key)
            return result
        count_before = self._result_count
        try:
            async with asyncio.timeout(BASE_TIMEOUT_S + 10 * self.limit_s):
                result = await self._request_trial(grammar)
        except TimeoutError:
            result = None
            if count_before == self._result_count:
                # The process hangs: its requests would occupy their slots forever.
                await self.stop_process()
        if result is None:
            raise EngineBusy("A structured output could not be checked in time")
        return result

    async def stop_process(self) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _request_trial(self, grammar: Grammar) -> TrialResult | None:
        await self._slots.acquire()
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self._slots.release)
            process = await self.start_process()
            cleanup.pop_all()
        future: _ResultFuture = asyncio.get_running_loop().create_future()
        # Release the slot when the trial ends, even if the caller is cancelled before.
        future.add_done_callback(partial(self._finish_trial, grammar.cache_key))
        if (result := self._results.get(grammar.cache_key)) is not None:
            # An equal grammar was tried while this grammar waited.
            future.set_result(result)
            return result
        number = next(self._numbers)
        self._futures[number] = future
        _write_message(process, {"number": number, "limit_s": self.limit_s, **asdict(grammar)})
        return await asyncio.shield(future)

    def _finish_trial(self, key: bytes, future: _ResultFuture) -> None:
        self._slots.release()
        if (result := future.result()) is not None:
            self._results[key] = result
        while len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)

    async def start_process(self) -> Process:
        """Start the process unless it is running; return the process.

        The first grammar starts it: it needs 190 MiB, and most workers never get such a grammar.
        """
        is_running = self._reader is not None and not self._reader.done()
        if self._start is None or (self._start.done() and not is_running):
            self._start = asyncio.create_task(self._start_process())
        # A caller that gives up must not end a start that others wait for.
        return await asyncio.shield(self._start)

    async def _start_process(self) -> Process:
        # Pass nothing from the worker's environment, since it contains secrets.
        process = self._process = await children.start_async(
            children.module_command(PROCESS_MODULE),
            children.add_source_path(_ENVIRONMENT),
            stdin=PIPE,
            stdout=PIPE,
        )
        self._reader = asyncio.create_task(self._read_results(process))
        async with contextlib.AsyncExitStack() as cleanup:
            # Without the description, the process would wait forever.
            cleanup.push_async_callback(self.stop_process)
            # The process imports its modules meanwhile, which takes longer.
            description = await asyncio.to_thread(self._describe_tokenizer)
            _write_message(process, {"tokenizer": description})
            cleanup.pop_all()
        return process

    async def _read_results(self, process: Process) -> None:
        assert process.stdout  # for the type checker: it is a pipe
        try:
            async for line in process.stdout:
                number, *result = json.loads(line)
                self._futures.pop(number).set_result(TrialResult(*result))
                self._result_count += 1
        except (ValueError, TypeError, KeyError):
            log.exception("the process that tests grammars has printed something unexpected")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        log.info("the process that tests grammars has ended")
        pending, self._futures = self._futures, {}
        for future in pending.values():
            future.set_result(None)


def _write_message(process: Process, message: dict[str, object]) -> None:
    """Write a message; ignore errors after the process's exit: ``_read_results`` reports it."""
    assert process.stdin  # for the type checker: it is a pipe
    with contextlib.suppress(OSError, RuntimeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
