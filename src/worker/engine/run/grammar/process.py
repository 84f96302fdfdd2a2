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
# worker's event loop; seconds of CPU time for one token; and number of tokens to choose.
MAX_PARSE_S = 0.5
MAX_STEP_S = 0.1
MAX_STEPS = 96

# Niceness of the process: it yields the CPU to the engine and the jobs, but still makes progress.
NICENESS = 10

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
            write_result(number, (outcome, 0.0))


def write_result(number: int, result: tuple[str, float]) -> None:
    # One short write is never mixed with the write of another process.
    os.write(sys.stdout.fileno(), json.dumps([number, *result]).encode() + b"\n")


def try_grammar(request: dict[str, Any], compiler: Any, vocabulary: int) -> tuple[str, float]:
    """Limit this fork, and try a grammar; return its outcome, CPU seconds (0 if not compiled)."""
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
            return SLOW, 0.0
        failure = FAILED
        compiled = compiler.compile_grammar(grammar)
        seconds = time.process_time() - started_at
        return try_tokens(xgr.GrammarMatcher(compiled), vocabulary) or FINE, seconds
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


def try_tokens(matcher: Any, vocabulary: int) -> str | None:
    """Let a grammar accept some tokens, one after another; return the problem, or None.

    The problem is ``SLOW`` if a token takes too long, or ``NOTHING`` if no first token is allowed.
    A token is repeated where the grammar allows it: each repetition adds parses to an ambiguous
    grammar.
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
