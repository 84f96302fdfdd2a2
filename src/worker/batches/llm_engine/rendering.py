"""The output of LLM Engine's batches: one JSON array, in the order of the requests."""

import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Raw, Struct

log = logging.getLogger(__name__)

NULL = b"null"


class _Response(Struct):
    status_code: int
    body: Raw


class _Line(Struct):
    """A line of a batch's output or error file: ``error`` is for what was not asked at all."""

    response: _Response | None = None


class _LogProbs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]


class _Choice(Struct):
    text: str
    logprobs: _LogProbs | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Completion(Struct):
    choices: list[_Choice]
    usage: _Usage


class _Token(Struct):
    token: str
    log_prob: float | None


class _Output(Struct, omit_defaults=True):
    text: str
    num_prompt_tokens: int
    num_completion_tokens: int
    tokens: list[_Token] | None = None


_line = msgspec.json.Decoder(_Line)
_completion = msgspec.json.Decoder(_Completion)

# Makes an item of a line; None: there is none.
Item = Callable[[bytes | None], bytes]


def array(found: Iterable[bytes | None], item: Item) -> Iterator[bytes]:
    """Yield the parts of an array.

    Args:
        found: for each request in turn its line of the output or error file; None: it has none.
        item: ``v1`` or ``v2``.
    """
    before = b"[\n"
    for line in found:
        yield before + item(line)
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"


def v1(line: bytes | None) -> bytes:
    """Return a completion in LLM Engine's words; null for what failed or was not asked."""
    response = _line.decode(line).response if line else None
    if response is None or response.status_code >= 400:
        return NULL
    try:
        completion = _completion.decode(response.body)
    except msgspec.ValidationError:
        # A batch with a strange answer has to end, too; in its output file the answer is whole.
        log.exception("an answer is no completion")
        return NULL
    choice = completion.choices[0]
    tokens = None
    if probs := choice.logprobs:
        tokens = list(map(_Token, probs.tokens, probs.token_logprobs))
    usage = completion.usage
    return msgspec.json.encode(
        _Output(choice.text, usage.prompt_tokens, usage.completion_tokens, tokens)
    )


def v2(line: bytes | None) -> bytes:
    """Return the body that answered a request, be it an error; null for what was not asked."""
    response = _line.decode(line).response if line else None
    return NULL if response is None else bytes(response.body)
