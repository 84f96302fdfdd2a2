"""Process that compiles grammars for the worker, to find out whether they compile.

The process compiles each grammar in a fork, with limits of time and memory that the kernel
enforces. The fork then chooses some tokens that the grammar allows, to find out how long each token
takes. The process exits when its standard input is closed, and the forks exit with it.
"""

import json
import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar as xgr

from worker.children import run_in_fork

# Bytes of memory that a fork may use in addition to the memory of this process.
EXTRA_MEMORY_BYTES = 2 << 30
# Limits for a trial: seconds of CPU time for parsing the grammar, which vLLM repeats later on the
# worker's event loop; seconds of CPU time for one token; number of tokens to choose, and seconds
# of CPU time for all of them.
MAX_PARSE_S = 0.5
MAX_STEP_S = 0.1
MAX_STEPS = 384
MAX_STEPS_S = 1.0
# If tokens take ever longer, CPU seconds on average of the last ones; and the ratio of these tokens
# to those in the middle. It is 2 if the time grows with the length, and 4 if with its square.
MAX_GROWING_STEP_S = 0.01
GROWTH = 3
AVERAGED_STEPS = 24

# Niceness of the process: it yields the CPU to the engine and the jobs, but still makes progress.
NICENESS = 10

# Outcome of a trial, CPU seconds to compile (0 if not compiled), and CPU seconds for a token.
Result = tuple[str, float, float]
# Outcomes of a trial. vLLM itself reports the mistake in an invalid grammar.
FINE, INVALID, FAILED = "fine", "invalid", "failed"
SLOW, LARGE, NOTHING = "slow", "large", "nothing"


def main() -> None:
    """Read requests from standard input, and write results to standard output, as lines of JSON."""
    # Not before the imports, because the first grammar waits for them.
    os.nice(NICENESS)
    # A crash of xgrammar must not leave a core dump.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Numbers of the requests by the process ids of their forks, which write results themselves.
    request_numbers: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: reap_forks(request_numbers))
    setup = json.loads(sys.stdin.buffer.readline())
    info = xgr.TokenizerInfo.deserialize_json(setup["tokenizer"])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = run_in_fork(partial(try_and_report, request, compiler, info.vocab_size))
        request_numbers[pid] = request["number"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def try_and_report(request: dict[str, Any], compiler: Any, vocabulary: int) -> None:
    """Try a grammar in a fork, and write the result."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    write_result(request["number"], try_grammar(request, compiler, vocabulary))


def reap_forks(request_numbers: dict[int, int]) -> None:
    """Reap exited forks on SIGCHLD; write results for those that failed, or that a limit killed."""
    while request_numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        number = request_numbers.pop(pid)
        if status:
            signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            outcomes: dict[int | None, str] = {signal.SIGPROF: SLOW, None: FAILED}
            outcome = outcomes.get(signal_number, LARGE)
            write_result(number, (outcome, 0.0, 0.0))


def write_result(number: int, result: Result) -> None:
    # One short write is never mixed with the write of another process.
    os.write(sys.stdout.fileno(), json.dumps([number, *result]).encode() + b"\n")


def try_grammar(request: dict[str, Any], compiler: Any, vocabulary: int) -> Result:
    """Limit this fork, and try a grammar."""
    signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + EXTRA_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    started_at = time.process_time()
    failure = INVALID  # vLLM itself will report the grammar's mistake
    try:
        grammar = parse_grammar(**request)
        if time.process_time() - started_at > MAX_PARSE_S:
            return SLOW, 0.0, 0.0
        failure = FAILED
        compiled = compiler.compile_grammar(grammar)
        seconds = time.process_time() - started_at
        signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
        # One way through the grammar may be short and the other slow.
        ways = [try_tokens(xgr.GrammarMatcher(compiled), vocabulary, way) for way in (-1, 0)]
        outcome = next((outcome for outcome, _ in ways if outcome != FINE), FINE)
        return outcome, seconds, max(step_s for _, step_s in ways)
    except MemoryError:
        return LARGE, 0.0, 0.0
    except (RuntimeError, ValueError, TypeError, KeyError):
        return failure, 0.0, 0.0


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


def try_tokens(matcher: Any, vocabulary: int, way: int) -> tuple[str, float]:
    """Let a grammar accept some tokens, one after another.

    Return the outcome, and CPU seconds for a token, on average of the last ones. The outcome is
    ``SLOW`` if tokens take too long or ever longer, ``NOTHING`` if no first token is allowed. A
    token is repeated where the grammar allows it: each repetition adds parses to an ambiguous
    grammar. ``way`` is the index of another token to choose, among the allowed tokens.
    """
    mask = xgr.allocate_token_bitmask(1, vocabulary)
    token = -1
    times_s: list[float] = []
    while len(times_s) < MAX_STEPS and sum(times_s) < MAX_STEPS_S:
        # With a timer, the clock of the process advances in steps of milliseconds.
        started_at = time.thread_time()
        matcher.fill_next_token_bitmask(mask)
        step_s = time.thread_time() - started_at
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:vocabulary]
        if not times_s and not bits.any():
            return NOTHING, 0.0
        bits[matcher.stop_token_ids] = 0
        if not bits.any():
            break
        token = token if bits[token] and times_s else int(np.flatnonzero(bits)[way])
        started_at = time.thread_time()
        is_accepted = matcher.accept_token(token)
        times_s.append(step_s + time.thread_time() - started_at)
        if times_s[-1] > MAX_STEP_S:
            return SLOW, times_s[-1]
        if not is_accepted or matcher.is_terminated():
            break
    if len(times_s) < AVERAGED_STEPS:
        return FINE, 0.0  # the first tokens may be the slowest
    last_s = _average_last(times_s)
    is_growing = last_s > GROWTH * _average_last(times_s[: len(times_s) // 2])
    return SLOW if is_growing and last_s > MAX_GROWING_STEP_S else FINE, last_s


def _average_last(times_s: list[float]) -> float:
    last = times_s[-AVERAGED_STEPS:]
    return sum(last) / len(last)


if __name__ == "__main__":
    main()
