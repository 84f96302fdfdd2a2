"""How much one job may ask to be computed: refused before it is, where that can be known. Pure."""

from collections.abc import Mapping
from math import inf
from typing import Any

from worker.errors import AnswerTooLarge, InvalidInput

# The least bytes as JSON of a token's log probability, and of each alternative's.
BYTES_OF_A_LOGPROB = 40
# Log probabilities of one step of a request: all its choices, each token with its alternatives.
MOST_AT_ONCE = 1_024
# The same of all items of a list that the engine has at once. vLLM looks up each one's text, and
# others wait for that in every step, for as long as the list takes.
MOST_IN_LISTS = 512
# Log probabilities of several choices that do not come in a stream, if each has all its tokens:
# ten times as many as can fit one yield.
MOST_UNSTREAMED = 200_000
# Choices of one prompt: each has its place in every yield, and a yield has a limit.
MOST_CHOICES = 256
# Prompts of a list, which are requests of their own.
MOST_PROMPTS = 10_000
# Characters of parameters beside a list of sampling_params, times their number.
MOST_REPEATED = 1_000_000
# Requests of one job that the engine gets at once: prompts, each as often as it has choices.
MOST_CHOICES_AT_ONCE = 1_024


def check_work(params: Mapping[str, Any], *, room: float, holder: str = "") -> None:
    """Check the product of prompts, choices, tokens and log probabilities.

    Args:
        params: sampling parameters, or a body that has them, with prompts beside them.
        room: the bytes that the answer has to fit; infinite if it comes in parts.
        holder: what stands before a parameter in messages, with a dot.

    Raises:
        AnswerTooLarge: it can't fit, or only if all choices end far earlier than they may.
        InvalidInput: it is too much at once.
    """
    width = max(_count(params, "n", 1), _count(params, "best_of", 1))
    prompts = params.get("prompt")
    count = len(prompts) if isinstance(prompts, list) and set(map(type, prompts)) != {int} else 1
    if count > 1 and width * count > MOST_CHOICES_AT_ONCE:
        message = f"{count:,} prompts times {width} is more than {MOST_CHOICES_AT_ONCE:,} choices"
        raise InvalidInput(f"{holder}n: {message}", param="n")
    each = logprobs_at_once(params)
    if not each:
        return
    if each > MOST_AT_ONCE:
        message = f"{each:,} log probabilities for a token of each choice, at most {MOST_AT_ONCE:,}"
        raise InvalidInput(f"{holder}logprobs: {message}", param="logprobs")
    least = count * each * _count(params, "min_tokens", 1) * BYTES_OF_A_LOGPROB
    may_be = count * each * _count(params, "max_tokens", 1)
    if least > room or (width > 1 and may_be > MOST_UNSTREAMED and room < inf):
        message = "so many log probabilities do not fit one yield: ask for fewer, or for a stream"
        raise AnswerTooLarge(f"{holder}logprobs: {message}", param="logprobs")


def logprobs_at_once(params: Mapping[str, Any]) -> int:
    """Return how many log probabilities one step comes with: of all choices of one prompt."""
    alternatives = _alternatives(params)
    if alternatives is None:
        return 0
    return max(_count(params, "n", 1), _count(params, "best_of", 1)) * (1 + alternatives)


def _alternatives(params: Mapping[str, Any]) -> int | None:
    """Return how many alternatives each token of an answer comes with; None: no probabilities."""
    asked = params.get("logprobs")
    if asked is None or asked is False:
        return None
    if asked is True:
        return _count(params, "top_logprobs", 0)
    return max(0, _count(params, "logprobs", 0))


def _count(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return a parameter that is a whole number; of another type vLLM refuses it."""
    value = params.get(name)
    return value if type(value) is int else default
