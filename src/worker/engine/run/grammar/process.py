"""Compiles grammars for the worker to see whether they compile: a process of its own.

Each is compiled in a fork of this process, which has a limit of time and of memory that the kernel
enforces, and follows the grammar for some tokens. The process ends when its standard input is
closed, and the forks end with it.
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

# Bytes that a fork may have more than this process.
ROOM_BYTES = 2 << 30
# Seconds of one core: to parse, which the worker's own loop does later, and to follow one token.
PARSED_S = 0.5
FOLLOWED_S = 0.1
STEPS = 96

# The results: "fine", or what is wrong.
FINE, INVALID, FAILED = "fine", "invalid", "failed"
SLOW, LARGE, NOTHING = "slow", "large", "nothing"


def main() -> None:
    """Read the tokenizer, then one request a line; write one result a line."""
    # A crash of xgrammar's leaves no file behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The forks write their results themselves, and these are told apart by their numbers.
    running: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: reap(running))
    setup = json.loads(sys.stdin.buffer.readline())
    info = xgr.TokenizerInfo.deserialize_json(setup["tokenizer"])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        running[fork(partial(answer, request, compiler, info.vocab_size))] = request["number"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def answer(request: dict[str, Any], compiler: Any, vocabulary: int) -> None:
    """Try a grammar out, and write the result; in a fork."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    tell(request["number"], attempt(request, compiler, vocabulary))


def reap(running: dict[int, int]) -> None:
    """Tell the results of forks that were killed by a limit."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        number = running.pop(pid)
        if status:
            ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            outcomes: dict[int | None, str] = {signal.SIGPROF: SLOW, None: FAILED}
            outcome = outcomes.get(ended_by, LARGE)
            tell(number, (outcome, 0.0))


def tell(number: int, result: tuple[str, float]) -> None:
    # One short write, which is never mixed with another's.
    os.write(sys.stdout.fileno(), json.dumps([number, *result]).encode() + b"\n")


def attempt(request: dict[str, Any], compiler: Any, vocabulary: int) -> tuple[str, float]:
    """Return what compiling and following comes to, and its seconds of one core."""
    signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a file of the kernel
        limit = int(statm.read().split()[0]) * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    begun = time.process_time()
    refused = INVALID  # vLLM says what is wrong
    try:
        grammar = parse(**request)
        if time.process_time() - begun > PARSED_S:
            return SLOW, 0.0
        refused = FAILED
        compiled = compiler.compile_grammar(grammar)
        seconds = time.process_time() - begun
        return follow(xgr.GrammarMatcher(compiled), vocabulary) or FINE, seconds
    except MemoryError:
        return LARGE, 0.0
    except (RuntimeError, ValueError, TypeError, KeyError):
        return refused, 0.0


def parse(kind: str, spec: str, *, compact: bool, **_: object) -> Any:
    """Parse a grammar as vLLM does; what is parsed is compiled alike, whatever its kind."""
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


def follow(matcher: Any, vocabulary: int) -> str | None:
    """Follow a grammar, with one token again and again where it allows that.

    An ambiguous grammar has more readings with every such token.
    """
    mask = xgr.allocate_token_bitmask(1, vocabulary)
    last = -1
    for step in range(STEPS):
        begun = time.process_time()
        matcher.fill_next_token_bitmask(mask)
        allowed = np.flatnonzero(
            np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:vocabulary]
        )
        if not len(allowed):
            return None if step else NOTHING
        last = last if last in allowed else int(allowed[-1])
        if not matcher.accept_token(last) or matcher.is_terminated():
            return None
        if time.process_time() - begun > FOLLOWED_S:
            return SLOW
    return None


if __name__ == "__main__":
    main()
