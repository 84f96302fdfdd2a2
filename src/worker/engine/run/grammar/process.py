"""Compiles grammars for the worker to see whether they compile: a process of its own.

Each is compiled in a fork of this process, which has a limit of time and of memory that the kernel
enforces, and follows the grammar for some tokens. The process ends when its standard input is
closed, and the forks end with it.
"""

import contextlib
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np
import xgrammar as xgr

from worker.children import fork

# Bytes that a fork may have more than this process.
ROOM_BYTES = 2 << 30
# Seconds of one core to parse, which the worker's own loop does later, for each request.
PARSED_S = 0.2
# How far a grammar is followed: tokens, and seconds of one core.
STEPS = 96
FOLLOW_S = 4.0
# What a text counts as that ends sooner, and how many of the tokens tried at each step are any.
SHORT, ANY = 16, 2
# Seconds of one core for a token: some that take more are too slow, and so is a time that still
# grows when it is that long. A count of what repeats makes it grow for as long as it counts.
FOLLOWED_S, SOME = 0.1, 3
GROWN_S = 0.02

# The results: "fine", or what is wrong.
FINE, INVALID, FAILED = "fine", "invalid", "failed"
SLOW, LARGE, NOTHING = "slow", "large", "nothing"


class Vocabulary(NamedTuple):
    """Of each token: its bytes, those of words, and whether it ends a text."""

    lengths: Any
    words: Any
    ends: Any

    @classmethod
    def of(cls, info: Any) -> Self:
        tokens = [*info.decoded_vocab, *[b""] * (info.vocab_size - len(info.decoded_vocab))]
        lengths = np.array([len(token) for token in tokens])
        ends = np.zeros(info.vocab_size, bool)
        ends[[*info.stop_token_ids, *info.special_token_ids]] = True
        return cls(lengths, lengths * [token.isalnum() for token in tokens], ends)

    def candidates(self, allowed: Any, last: int) -> list[int]:
        """Return tokens that may be the costliest to go on with.

        What counts repeats counts most of the longest; the longest word, the last one (or its
        neighbour) and any others are for texts that the longest would end.
        """
        chosen = [random.choice(allowed) for _ in range(ANY)]
        chosen += [allowed[np.argmax(sizes[allowed])] for sizes in (self.lengths, self.words)]
        again = allowed[np.searchsorted(allowed, last) :][:1]
        return [*{int(token) for token in (*chosen, *again)}]


def main() -> None:
    """Read the tokenizer, then one request a line; write one result a line."""
    # A crash of xgrammar's leaves no file behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The forks write their results themselves, and these are told apart by their numbers.
    running: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: reap(running))
    setup = json.loads(sys.stdin.buffer.readline())
    info = xgr.TokenizerInfo.deserialize_json(setup["tokenizer"])
    vocabulary = Vocabulary.of(info)
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        running[fork(partial(answer, request, compiler, vocabulary))] = request["number"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def answer(request: dict[str, Any], compiler: Any, vocabulary: Vocabulary) -> None:
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


def attempt(request: dict[str, Any], compiler: Any, vocabulary: Vocabulary) -> tuple[str, float]:
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
        return follow_all(compiled, request, compiler, vocabulary), seconds
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


def follow_all(
    compiled: Any, request: dict[str, Any], compiler: Any, vocabulary: Vocabulary
) -> str:
    """Return what following a grammar comes to, and its expressions and grammars alone.

    Alone they show what they take, wherever they stand in the whole.
    """
    # A token that takes no end is one step of this.
    signal.setitimer(signal.ITIMER_PROF, 2 * FOLLOW_S)
    end = time.process_time() + FOLLOW_S
    if wrong := follow(compiled, vocabulary, end):
        return wrong
    for read, text in parts(request["kind"], request["spec"]):
        if time.process_time() > end:
            return SLOW
        # What can't be read alone is no part that xgrammar follows.
        with contextlib.suppress(RuntimeError):
            if follow(compiler.compile_grammar(read(text)), vocabulary, end) == SLOW:
                return SLOW
    return FINE


def parts(kind: str, spec: str) -> Iterator[tuple[Callable[[str], Any], str]]:
    """Yield the expressions and grammars in a schema or a structural tag, with what reads them."""
    waiting: list[Any] = [json.loads(spec)] if kind in ("json", "structural_tag") else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            expressions = [value.get("pattern"), *(value.get("patternProperties") or ())]
            yield from ((xgr.Grammar.from_regex, one) for one in expressions if type(one) is str)
            if type(grammar := value.get("grammar")) is str:
                yield xgr.Grammar.from_ebnf, grammar


def follow(compiled: Any, vocabulary: Vocabulary, end: float) -> str | None:
    """Follow a grammar as a caller would who wants that to take long, and biases some tokens.

    Args:
        compiled: the grammar.
        vocabulary: of the model.
        end: the second of this process at which it is enough.

    Returns:
        What is wrong; None if nothing is.
    """
    steps = 0
    while steps < STEPS and time.process_time() < end:
        matcher = xgr.GrammarMatcher(compiled, max_rollback_tokens=1)
        allowed, ends = allowed_by(matcher, vocabulary)
        if not len(allowed):
            return None if ends else NOTHING
        seconds: list[float] = []
        for cost in islice(costs(matcher, allowed, vocabulary, end), STEPS - steps):
            seconds.append(cost)
            if sum(token > FOLLOWED_S for token in seconds) >= SOME:
                return SLOW
        if grows(seconds):
            return SLOW
        # A text that ended soon may not have been the worst: there are some more.
        steps += max(SHORT, len(seconds))
    return None


def allowed_by(matcher: Any, vocabulary: Vocabulary) -> tuple[Any, bool]:
    """Return the tokens that may come next and don't end the text, and whether it may end."""
    size = len(vocabulary.ends)
    mask = xgr.allocate_token_bitmask(1, size)
    matcher.fill_next_token_bitmask(mask)
    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:size].astype(bool)
    return np.flatnonzero(bits & ~vocabulary.ends), bool((bits & vocabulary.ends).any())


def costs(matcher: Any, allowed: Any, vocabulary: Vocabulary, end: float) -> Iterator[float]:
    """Follow a grammar, and yield the seconds of each token: of some, the one that takes longest.

    A text ends only where nothing else may come.
    """
    last = -1
    while time.process_time() < end:
        # Of those that cost the same, a word stays where it is longer than others.
        tried = [
            (round(cost, 3), vocabulary.words[token] > 0, random.random(), token, cost, after)
            for token in vocabulary.candidates(allowed, last)
            for cost, after in going_on(matcher, token, vocabulary)
        ]
        if not tried:
            return
        *_, last, cost, allowed = max(tried)
        matcher.accept_token(last)
        yield cost


def going_on(matcher: Any, token: int, vocabulary: Vocabulary) -> Iterator[tuple[float, Any]]:
    """Yield the seconds of going on with a token and what may come then, unless the text ends."""
    begun = time.process_time()
    if matcher.accept_token(token):
        if not matcher.is_terminated():
            allowed, _ = allowed_by(matcher, vocabulary)
            if len(allowed):
                yield time.process_time() - begun, allowed
        matcher.rollback(1)


def grows(seconds: list[float]) -> bool:
    """Return whether the times of tokens still grow, and are long already."""
    quarter = len(seconds) // 4
    before, now = sum(seconds[quarter : 2 * quarter]), sum(seconds[len(seconds) - quarter :])
    return quarter >= SHORT // 4 and now > max(quarter * GROWN_S, 2 * before)


if __name__ == "__main__":
    main()
