"""Process that compiles grammars for the worker, to find out whether they compile.

The process compiles each grammar in a fork, with limits of time and memory that the kernel
enforces, and then follows the grammar for some tokens. The process exits when its standard input is
closed, and the forks exit with it.
"""

import json
import os
import resource
import signal
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import xgrammar as xgr

from worker.children import fork

# Bytes of memory that a fork may use in addition to this process.
EXTRA_MEMORY_BYTES = 2 << 30
# Seconds of one core for parsing, which the worker's own loop repeats later, and for following one
# token.
MAX_PARSE_S = 0.5
MAX_STEP_S = 0.1
MAX_STEPS = 96

# The outcomes: "fine", or the problem.
FINE, INVALID, FAILED = "fine", "invalid", "failed"
SLOW, LARGE, NOTHING = "slow", "large", "nothing"


def main() -> None:
    """Read the tokenizer, then one request per line; write one result per line."""
    # A crash of xgrammar must not leave a core dump.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The forks write the results themselves, each with the number of its request.
    request_numbers: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: report_killed_forks(request_numbers))
    setup = json.loads(sys.stdin.buffer.readline())
    info = xgr.TokenizerInfo.deserialize_json(setup["tokenizer"])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        request_numbers[fork(partial(try_and_report, request, compiler, info.vocab_size))] = (
            request["number"]
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def try_and_report(request: dict[str, Any], compiler: Any, vocabulary: int) -> None:
    """Try a grammar in a fork, and write the result."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    report(request["number"], try_grammar(request, compiler, vocabulary))


def report_killed_forks(request_numbers: dict[int, int]) -> None:
    """Report the results of forks that were killed by a limit, or that failed."""
    while request_numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        number = request_numbers.pop(pid)
        if status:
            signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            outcomes: dict[int | None, str] = {signal.SIGPROF: SLOW, None: FAILED}
            outcome = outcomes.get(signal_number, LARGE)
            report(number, (outcome, 0.0))


def report(number: int, result: tuple[str, float]) -> None:
    # One short write is never mixed with the write of another process.
    os.write(sys.stdout.fileno(), json.dumps([number, *result]).encode() + b"\n")


def try_grammar(request: dict[str, Any], compiler: Any, vocabulary: int) -> tuple[str, float]:
    """Return the outcome of compiling and following a grammar, and its seconds of one core."""
    signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a file of the kernel
        limit = int(statm.read().split()[0]) * resource.getpagesize() + EXTRA_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    started_at = time.process_time()
    failure = INVALID  # vLLM reports the mistake
    try:
        grammar = parse_grammar(**request)
        if time.process_time() - started_at > MAX_PARSE_S:
            return SLOW, 0.0
        failure = FAILED
        compiled = compiler.compile_grammar(grammar)
        seconds = time.process_time() - started_at
        return follow_grammar(xgr.GrammarMatcher(compiled), vocabulary) or FINE, seconds
    except MemoryError:
        return LARGE, 0.0
    except (RuntimeError, ValueError, TypeError, KeyError):
        return failure, 0.0


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
            # The former form of structural tags.
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


def follow_grammar(matcher: Any, vocabulary: int) -> str | None:
    """Follow a grammar for some tokens; return the problem, or None.

    The same token is repeated where the grammar allows it, since an ambiguous grammar has more
    parses after each repetition.
    """
    mask = xgr.allocate_token_bitmask(1, vocabulary)
    token = -1
    for step in range(MAX_STEPS):
        started_at = time.process_time()
        matcher.fill_next_token_bitmask(mask)
        allowed = np.flatnonzero(
            np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:vocabulary]
        )
        if not len(allowed):
            return None if step else NOTHING
        token = token if token in allowed else int(allowed[-1])
        if not matcher.accept_token(token) or matcher.is_terminated():
            return None
        if time.process_time() - started_at > MAX_STEP_S:
            return SLOW
    return None


if __name__ == "__main__":
    main()
