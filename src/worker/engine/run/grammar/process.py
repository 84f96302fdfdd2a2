"""Process that compiles grammars for the worker, to find out whether they compile.

The process compiles each grammar in a fork, with limits of time and memory that the kernel
enforces. The fork then walks through the grammar: it chooses some tokens that the grammar allows,
to find out how long each token takes. The regular expressions in a schema are tried on their own,
too, since no short walk leads through all of them. The process exits when its standard input is
closed, and the forks exit with it.
"""

import json
import mmap
import os
import random
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar as xgr

from worker.children import run_in_fork
from worker.engine.run.grammar.schemas import find_places
from worker.limits.work import (
    MAX_COMPILE_BYTES,
    MAX_GROWING_TOKEN_S,
    MAX_PARSE_S,
    MAX_TOKEN_S,
)

# Tokens of a walk; and seconds of CPU time for all walks, after which the kernel ends the trial.
MAX_STEPS = 384
MAX_WALKS_S = 5.0
# The walks: the probability of each to leave the part of the text that it is in, and its seconds of
# CPU time. Those that never leave find a slow part at the beginning, and the others find slow parts
# behind short ones.
WALKS = ((0.0, 1.0), (0.0, 1.0), (0.02, 0.25), (0.1, 0.25), (0.3, 0.25))
# Characters of tokens that lead from one part of a JSON text to the next.
SEPARATORS = b' \t\r\n{}[]":,'
# Vocabulary for the regular expressions in a schema. Compiling takes as long as the vocabulary is
# large, but nested counts are slow with any.
CHARACTERS = [*map(chr, range(32, 127)), "<end>"]
# Bytes for the place of a problem, which a fork that the kernel ends leaves to this process.
PLACE_BYTES = 512
# Tokens take ever longer if the last ones take this many times as long as those in the middle. The
# ratio is 2 if the time grows with the length, and 4 if with its square.
GROWTH = 3
AVERAGED_STEPS = 24

# Niceness of the process: it yields the CPU to the engine and the jobs, but still makes progress.
NICENESS = 10

# Outcome of a trial, CPU seconds to compile (0 if not compiled), CPU seconds for a token, and the
# place of the problem in a schema (empty if it is unknown).
Result = tuple[str, float, float, str]
# Outcomes of a trial. vLLM itself reports the mistake in an invalid grammar.
FINE, INVALID, FAILED = "fine", "invalid", "failed"
SLOW, LARGE, NOTHING = "slow", "large", "nothing"
# Outcomes of forks that fail, by the signal that ended them; None: an error. The timer of CPU time
# sends SIGPROF. Beyond the limit of memory, a failed allocation ends the fork in one of many ways.
OUTCOMES: dict[int | None, str] = defaultdict(lambda: LARGE, {signal.SIGPROF: SLOW, None: FAILED})


def main() -> None:
    """Read requests from standard input, and write results to standard output, as lines of JSON."""
    # Not before the imports, because the first grammar waits for them.
    os.nice(NICENESS)
    # A crash of xgrammar must not leave a core dump.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The requests' numbers and places, by the process ids of their forks, which write results
    # themselves.
    forks: dict[int, tuple[int, mmap.mmap]] = {}
    signal.signal(signal.SIGCHLD, lambda *_: reap_forks(forks))
    setup = json.loads(sys.stdin.buffer.readline())
    info = xgr.TokenizerInfo.deserialize_json(setup["tokenizer"])
    trial = Trial(info)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        place = mmap.mmap(-1, PLACE_BYTES)
        pid = run_in_fork(partial(try_and_report, request, trial, place))
        forks[pid] = request["number"], place
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def try_and_report(request: dict[str, Any], trial: "Trial", place: mmap.mmap) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    write_result(request["number"], trial.try_grammar(request, place))


def reap_forks(forks: dict[int, tuple[int, mmap.mmap]]) -> None:
    """Reap exited forks on SIGCHLD; write results for those that failed, or that a limit killed."""
    while forks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        number, place = forks.pop(pid)
        if status:
            signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            write_result(number, (OUTCOMES[signal_number], 0.0, 0.0, read_place(place)))


def read_place(place: mmap.mmap) -> str:
    return place[:].rstrip(b"\0").decode(errors="ignore")


def write_result(number: int, result: Result) -> None:
    # One short write is never mixed with the write of another process.
    os.write(sys.stdout.fileno(), json.dumps([number, *result]).encode() + b"\n")


class Trial:
    """Compiles grammars for a tokenizer, and walks through them. Use in a fork, for one grammar."""

    def __init__(self, tokenizer: Any) -> None:
        self._compiler = CompilerWithWalks(tokenizer)
        characters = xgr.TokenizerInfo(CHARACTERS, stop_token_ids=[len(CHARACTERS) - 1])
        self._regex_compiler = CompilerWithWalks(characters)

    def try_grammar(self, request: dict[str, Any], place: mmap.mmap) -> Result:
        """Limit this fork, and try a grammar; ``place`` contains the place that is being tried."""
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        restart_timer(request["limit_s"])
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MAX_COMPILE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        started_at = time.process_time()
        failure = INVALID  # vLLM itself will report the grammar's mistake
        try:
            grammar = parse_grammar(**request)
            if time.process_time() - started_at > MAX_PARSE_S:
                return SLOW, 0.0, 0.0, ""
            failure = FAILED
            if request["kind"] in ("json", "structural_tag") and self._has_slow_regex(
                request["spec"], place
            ):
                return SLOW, 0.0, 0.0, read_place(place)
            restart_timer(request["limit_s"])
            started_at = time.process_time()
            compiled = self._compiler.compile(grammar)
            seconds = time.process_time() - started_at
            outcome, step_s = self._compiler.walk_all_ways(compiled)
        except MemoryError:
            return LARGE, 0.0, 0.0, ""
        except (RuntimeError, ValueError, TypeError, KeyError):
            return failure, 0.0, 0.0, ""
        return outcome, seconds, step_s, ""

    def _has_slow_regex(self, spec: str, found: mmap.mmap) -> bool:
        """Return whether a schema has a slow regular expression; its place is in ``found``."""
        tried: set[str] = set()
        for place in find_places(spec):
            found[:] = (
                (place.description or "a pattern")
                .encode(errors="replace")[:PLACE_BYTES]
                .ljust(PLACE_BYTES, b"\0")
            )
            for regex in {*place.regexes} - tried:
                tried.add(regex)
                try:
                    compiled = self._regex_compiler.compile(xgr.Grammar.from_regex(regex))
                except RuntimeError:
                    continue  # a mistake, which vLLM itself will report
                if self._regex_compiler.walk_all_ways(compiled)[0] == SLOW:
                    return True
        found[:] = bytes(PLACE_BYTES)
        return False


class CompilerWithWalks:
    """Compiles grammars for a vocabulary, and walks through them."""

    def __init__(self, tokenizer: Any) -> None:
        # Like vLLM's, with a cache: without it, xgrammar compiles some grammars that it rejects.
        self._compiler = xgr.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=True)
        self._vocabulary: int = tokenizer.vocab_size
        self._separators = np.zeros(self._vocabulary, bool)
        self._spaces = np.zeros(self._vocabulary, bool)
        for index, token in enumerate(tokenizer.decoded_vocab):
            self._separators[index] = not token.strip(SEPARATORS)
            self._spaces[index] = not token.strip()

    def compile(self, grammar: Any) -> Any:
        return self._compiler.compile_grammar(grammar)

    def walk_all_ways(self, compiled: Any) -> tuple[str, float]:
        """Return the outcome of several walks, and the most CPU seconds for a token."""
        restart_timer(MAX_WALKS_S)
        worst_s = 0.0
        for seed, (leaving, max_s) in enumerate(WALKS):
            choose = partial(self._choose_token, random.Random(seed), leaving)
            outcome, step_s = self._walk(compiled, choose, max_s)
            worst_s = max(worst_s, step_s)
            if outcome != FINE:
                return outcome, worst_s
        return FINE, worst_s

    def _choose_token(
        self, source: random.Random, leaving: float, allowed: np.ndarray, previous: int
    ) -> int:
        """Return the previous token or another one within this part of a text, or a separator.

        Each repetition of a token adds parses to an ambiguous grammar.
        """
        inner, separators = allowed & ~self._separators, allowed & self._separators & ~self._spaces
        if inner.any() and (source.random() >= leaving or not separators.any()):
            if previous >= 0 and inner[previous]:
                return previous
            choices = np.flatnonzero(inner)
        else:
            choices = np.flatnonzero(separators if separators.any() else allowed)
        return int(choices[source.randrange(len(choices))])

    def _walk(
        self,
        compiled: Any,
        choose: Callable[[np.ndarray, int], int],
        max_s: float,
    ) -> tuple[str, float]:
        """Let a grammar accept some tokens, one after another.

        Return the outcome, and CPU seconds for a token, on average of the last ones. The outcome is
        ``SLOW`` if tokens take too long or ever longer, ``NOTHING`` if no first token is allowed.
        ``choose`` returns the next token, from the allowed ones and the previous token.
        """
        matcher = xgr.GrammarMatcher(compiled)
        mask = xgr.allocate_token_bitmask(1, self._vocabulary)
        token = -1
        times_s: list[float] = []
        while len(times_s) < MAX_STEPS and sum(times_s) < max_s:
            # With a timer, the clock of the process advances in steps of milliseconds.
            started_at = time.thread_time()
            matcher.fill_next_token_bitmask(mask)
            step_s = time.thread_time() - started_at
            bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
            allowed = bits[: self._vocabulary].astype(bool)
            if not times_s and not allowed.any():
                return NOTHING, 0.0
            allowed[matcher.stop_token_ids] = False
            if not allowed.any():
                break
            token = choose(allowed, token)
            started_at = time.thread_time()
            is_accepted = matcher.accept_token(token)
            times_s.append(step_s + time.thread_time() - started_at)
            if times_s[-1] > MAX_TOKEN_S:
                return SLOW, times_s[-1]
            if not is_accepted or matcher.is_terminated():
                break
        if len(times_s) < AVERAGED_STEPS:
            return FINE, 0.0  # the first tokens may be the slowest
        last_s = _average_last(times_s)
        is_growing = last_s > GROWTH * _average_last(times_s[: len(times_s) // 2])
        return SLOW if is_growing and last_s > MAX_GROWING_TOKEN_S else FINE, last_s


def restart_timer(limit_s: float) -> None:
    """Kill this process after more seconds of CPU time."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)


def parse_grammar(kind: str, spec: str, *, compact: bool, **_: object) -> Any:
    """Parse a grammar as vLLM does. Parsed grammars of all kinds compile in the same way."""
    match kind:
        case "json":
            separators = (",", ":") if compact else None
            return xgr.Grammar.from_json_schema(
                spec, any_whitespace=not compact, separators=separators
            )
        case "structural_tag":
            content = json.loads(spec)
            if "structures" not in content:
                return xgr.Grammar.from_structural_tag(spec)
            # The former format of structural tags.
            items = [
                xgr.StructuralTagItem(
                    begin=tag["begin"], schema=json.dumps(tag["schema"]), end=tag["end"]
                )
                for tag in content["structures"]
            ]
            return xgr.Grammar.from_structural_tag(items, content["triggers"])
        case "regex":
            return xgr.Grammar.from_regex(spec)
        case "lark":
            return xgr.Grammar.from_lark(spec)
    return xgr.Grammar.from_ebnf(spec)


def _average_last(times_s: list[float]) -> float:
    last = times_s[-AVERAGED_STEPS:]
    return sum(last) / len(last)


if __name__ == "__main__":
    main()
