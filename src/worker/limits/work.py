"""Limits for the work that one job can request, checked before the work starts."""

from collections.abc import Mapping
from math import inf
from typing import Any

from worker.errors import AnswerTooLarge, InvalidInput

# Minimum bytes of JSON for the log probability of a token, and for each alternative.
BYTES_PER_LOGPROB = 40
# Maximum log probabilities of one request in one step: a token of each choice, each with its
# alternatives.
MAX_LOGPROBS_PER_STEP = 1_024
# Maximum log probabilities in one step of all concurrent items of a list. vLLM decodes their texts
# in every step, and other requests wait for that as long as the list takes.
MAX_LIST_LOGPROBS_PER_STEP = 512
# Maximum log probabilities of an answer with several choices that is not streamed, if each choice
# has ``max_tokens``: ten times as many as can fit one yield.
MAX_UNSTREAMED_LOGPROBS = 200_000
# Maximum choices of one prompt. Each has an entry in every yield, and a yield has a size limit.
MAX_CHOICES = 256
# Maximum prompts in a list. Each is a request of its own.
MAX_PROMPTS = 10_000
# Maximum product of two numbers: the items in a list of ``sampling_params``, and the characters of
# the parameters outside of it, which all items repeat.
MAX_REPEATED_CHARACTERS = 1_000_000
# Maximum requests of one job that the engine gets concurrently: prompts times choices.
MAX_CONCURRENT_CHOICES = 1_024


def check_requested_work(
    params: Mapping[str, Any], *, max_answer_bytes: float, holder: str = ""
) -> None:
    """Check the product of prompts, choices, tokens and log probabilities.

    Args:
        params: Sampling parameters, or a body that contains them, with its prompts.
        max_answer_bytes: Maximum bytes of the response; infinite if the response comes in parts.
        holder: Prefix of a parameter in messages, with a trailing dot.

    Raises:
        AnswerTooLarge: If the log probabilities certainly or probably don't fit one response.
        InvalidInput: If there are too many choices, or too many log probabilities in one step.
    """
    choices = max(_integer_or_default(params, "n", 1), _integer_or_default(params, "best_of", 1))
    prompts: Any = params.get("prompt")
    is_list = isinstance(prompts, list) and set(map(type, prompts)) != {int}
    prompt_count = len(prompts) if is_list else 1
    if prompt_count > 1 and choices * prompt_count > MAX_CONCURRENT_CHOICES:
        product = f"{prompt_count:,} prompts times {choices}"
        message = f"{product} is more than {MAX_CONCURRENT_CHOICES:,} choices"
        raise InvalidInput(f"{holder}n: {message}", param="n")
    per_step = logprobs_per_step(params)
    if not per_step:
        return
    if per_step > MAX_LOGPROBS_PER_STEP:
        message = f"{per_step:,} log probabilities for a token of each choice"
        message = f"{message}, at most {MAX_LOGPROBS_PER_STEP:,}"
        raise InvalidInput(f"{holder}logprobs: {message}", param="logprobs")
    min_bytes = (
        prompt_count * per_step * _integer_or_default(params, "min_tokens", 1) * BYTES_PER_LOGPROB
    )
    max_logprobs = prompt_count * per_step * _integer_or_default(params, "max_tokens", 1)
    is_excessive = max_answer_bytes < inf and choices > 1 and max_logprobs > MAX_UNSTREAMED_LOGPROBS
    if min_bytes > max_answer_bytes or is_excessive:
        message = "so many log probabilities do not fit one yield: ask for fewer, or for a stream"
        raise AnswerTooLarge(f"{holder}logprobs: {message}", param="logprobs")


def logprobs_per_step(params: Mapping[str, Any]) -> int:
    """Return the number of log probabilities in one step, for all choices of one prompt."""
    alternatives = _alternatives_per_token(params)
    if alternatives is None:
        return 0
    return max(_integer_or_default(params, "n", 1), _integer_or_default(params, "best_of", 1)) * (
        1 + alternatives
    )


def _alternatives_per_token(params: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives for each token; None without log probabilities."""
    logprobs = params.get("logprobs")
    if logprobs is None or logprobs is False:
        return None
    if logprobs is True:
        return _integer_or_default(params, "top_logprobs", 0)
    return max(0, _integer_or_default(params, "logprobs", 0))


def _integer_or_default(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return an integer parameter, or the default for values of other types, which vLLM refuses."""
    value = params.get(name)
    return value if type(value) is int else default
