"""Limits for the work that a request asks for: choices, log probabilities, comparisons, grammars.

``check_requested_work`` checks their products before the work starts. The engine checks grammars
(``worker.engine.run.grammar``), and lets requests wait that need much work in each step.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

from worker.chunking import RESULT_LIMIT_BYTES
from worker.errors import AnswerTooLarge, InvalidInput
from worker.limits.parameters import parse_number

# Minimum bytes of JSON for the log probability of a token, and for each alternative.
BYTES_PER_LOGPROB = 40
# Maximum log probabilities of one request in one step: a token of each choice, each with its
# alternatives.
MAX_LOGPROBS_PER_STEP = 1_024
# Maximum log probabilities in one step of all concurrent items of a list, and of other long
# requests. vLLM processes them in every step, and other requests wait for that as long as the list
# takes.
MAX_LIST_LOGPROBS_PER_STEP = 512
# Alternatives for a token above which a small engine's step takes less time than they do: maximum
# log probabilities in one step of a request for several choices. These requests count as long.
MANY_ALTERNATIVES = 32
MAX_MANY_LOGPROBS_PER_STEP = 256
# Maximum log probabilities of an answer with several choices that is not streamed, if each choice
# has ``max_tokens``: as many as fit a result at least.
MAX_UNSTREAMED_LOGPROBS = RESULT_LIMIT_BYTES // BYTES_PER_LOGPROB
# Maximum log probabilities for one token of a prompt. Each choice computes the prompt again.
MAX_PROMPT_LOGPROBS = 32
# Maximum log probabilities of several prompts, or of a prompt for several choices, in an answer
# that is not streamed. vLLM writes all of them in one go, 5 to 10 us for each, and others wait.
MAX_PROMPT_LOGPROBS_PER_ANSWER = 500_000
# Characters of a prompt that count as a token.
CHARACTERS_PER_TOKEN = 4
# Maximum comparisons of tokens for ``repetition_detection`` in one step, in the worst case: of one
# choice, and of all choices of a prompt. A comparison takes 0.03 to 0.05 us of the step that all
# requests share.
MAX_COMPARISONS = 65_536
MAX_COMPARISONS_PER_STEP = 262_144
# Comparisons for a choice that take no longer than the rest of its step; above that, all concurrent
# requests may have this many together.
MIN_COSTLY_COMPARISONS = 4_096
MAX_CONCURRENT_COMPARISONS = 1_048_576
# Maximum choices of one prompt. Each has an entry in every yield, and a yield has a size limit.
MAX_CHOICES = 256
# Maximum prompts in a list. Each is a request of its own.
MAX_PROMPTS = 10_000
# Maximum product of two numbers: the items in a list of ``sampling_params``, and the characters of
# the parameters outside of it, which all items repeat.
MAX_REPEATED_CHARACTERS = 1_000_000
# Maximum requests of one job that the engine gets concurrently: prompts times choices.
MAX_CONCURRENT_CHOICES = 1_024

# Limits of grammars: the schemas, regular expressions and grammars that constrain an answer.
# Only those that the engine compiles have these limits: ``response_format``, structured outputs,
# and the schemas of tools that are ``strict``, required or named. Other tools are text for the
# template. ``worker.engine.run.grammar`` tries each grammar before the engine gets it.

# Maximum characters of a grammar. Compiling takes up to 300 bytes of memory for each.
MAX_GRAMMAR_CHARACTERS = 500_000
# Maximum seconds of CPU time to compile a grammar; and on machines with at most
# ``SINGLE_THREAD_CPUS``, where the engine core compiles in a single thread and all others wait.
MAX_COMPILE_S = 30.0
SINGLE_THREAD_CPUS, SINGLE_THREAD_COMPILE_S = 2, 2.0
# The same to parse one, which vLLM repeats later on the worker's event loop.
MAX_PARSE_S = 0.5
# Maximum seconds of CPU time for one token, which delays all requests in the step; and for one
# token of each choice, on average.
MAX_TOKEN_S = 0.1
MAX_CHOICES_TOKEN_S = 0.05
# The same on average of the last tokens, if tokens take ever longer.
MAX_GROWING_TOKEN_S = 0.01
# Bytes of memory to compile one.
MAX_COMPILE_BYTES = 2 << 30


def check_requested_work(
    params: Mapping[str, Any],
    *,
    max_answer_bytes: float,
    max_output_tokens: float,
    holder: str,
) -> None:
    """Check the products of prompts, choices, tokens, log probabilities and comparisons.

    ``params`` are sampling parameters, or a body that contains them, with its prompts.
    ``max_answer_bytes`` are infinite if the response comes in parts. ``max_output_tokens`` are of a
    choice, and reduce ``max_tokens``. ``holder`` precedes a parameter in messages, with a trailing
    dot.
    """
    choices = _count_choices(params)
    prompts = _list_prompts(params)
    prompt_count = len(prompts)
    if prompt_count > 1 and choices * prompt_count > MAX_CONCURRENT_CHOICES:
        product = f"{prompt_count:,} prompts times {choices}"
        message = f"{product} is more than {MAX_CONCURRENT_CHOICES:,} choices"
        raise InvalidInput(f"{holder}n: {message}", param="n")
    _check_comparisons(params.get("repetition_detection"), choices, holder)
    _check_prompt_logprobs(params, prompts, choices, holder)
    per_step = logprobs_per_step(params)
    if not per_step:
        return
    has_many = choices > 1 and per_step > choices * (1 + MANY_ALTERNATIVES)
    maximum = MAX_MANY_LOGPROBS_PER_STEP if has_many else MAX_LOGPROBS_PER_STEP
    if per_step > maximum:
        message = f"{per_step:,} log probabilities for a token of each choice, at most {maximum:,}"
        raise InvalidInput(f"{holder}logprobs: {message}", param="logprobs")
    min_bytes = (
        prompt_count * per_step * _integer_or_default(params, "min_tokens", 1) * BYTES_PER_LOGPROB
    )
    max_tokens = min(_integer_or_default(params, "max_tokens", 1), max_output_tokens)
    max_logprobs = prompt_count * per_step * max_tokens
    is_excessive = max_answer_bytes < inf and choices > 1 and max_logprobs > MAX_UNSTREAMED_LOGPROBS
    if min_bytes > max_answer_bytes or is_excessive:
        message = "the log probabilities do not fit one result: ask for fewer, or for a stream"
        raise AnswerTooLarge(f"{holder}logprobs: {message}", param="logprobs")


def _check_comparisons(detection: Any, choices: int, holder: str) -> None:
    comparisons = comparisons_per_step(detection) if isinstance(detection, Mapping) else 0
    total = comparisons * choices
    if comparisons <= MAX_COMPARISONS and total <= MAX_COMPARISONS_PER_STEP:
        return
    message = f"up to {comparisons:,} comparisons for a token, at most {MAX_COMPARISONS:,}"
    remedy = "lower max_pattern_size or min_count"
    if comparisons <= MAX_COMPARISONS:
        message = f"{choices} choices times up to {comparisons:,} comparisons for a token"
        message = f"{message}, at most {MAX_COMPARISONS_PER_STEP:,}"
        remedy = f"{remedy}, or ask for fewer choices"
    name = "repetition_detection"
    raise InvalidInput(f"{holder}{name}: {message}: {remedy}", param=name)


def comparisons_per_step(detection: Mapping[str, Any]) -> int:
    """Return the number of tokens that vLLM compares in a step of one choice, in the worst case.

    For each pattern size, it compares the last tokens with ``min_count - 1`` preceding patterns.
    ``detection`` has the fields of ``repetition_detection``.
    """
    largest = _integer_or_default(detection, "max_pattern_size", 0)
    smallest = max(1, _integer_or_default(detection, "min_pattern_size", 0))
    count = _integer_or_default(detection, "min_count", 0)
    return max(0, count - 1) * max(0, (largest + smallest) * (largest - smallest + 1) // 2)


def _check_prompt_logprobs(
    params: Mapping[str, Any], prompts: list[Any], choices: int, holder: str
) -> None:
    # With ``echo``, the tokens of a prompt have the log probabilities of the others.
    is_echo = params.get("echo") and "prompt" in params  # in a chat, it has another meaning
    names = ("prompt_logprobs", "logprobs") if is_echo else ("prompt_logprobs",)
    if all(params.get(name) is None for name in names):
        return
    per_token = choices * (1 + max(_integer_or_default(params, name, 0) for name in names))
    if choices > 1 and per_token > MAX_PROMPT_LOGPROBS:
        message = f"{per_token:,} log probabilities for a token of the prompt of each choice"
        message = f"{message}, at most {MAX_PROMPT_LOGPROBS}: ask for them with fewer choices"
        raise InvalidInput(f"{holder}{names[0]}: {message}", param=names[0])
    tokens = sum(
        len(prompt) // (CHARACTERS_PER_TOKEN if isinstance(prompt, str) else 1)
        for prompt in prompts
        if isinstance(prompt, str | list)
    )
    total = per_token * tokens
    is_several = choices * len(prompts) > 1
    if is_several and not params.get("stream") and total > MAX_PROMPT_LOGPROBS_PER_ANSWER:
        message = "the log probabilities do not fit one answer: send fewer prompts"
        raise AnswerTooLarge(f"{holder}{names[0]}: {message}", param=names[0])


def _list_prompts(params: Mapping[str, Any]) -> list[Any]:
    """Return the prompts of a body; a list of token ids is one prompt."""
    prompts: Any = params.get("prompt")
    is_list = isinstance(prompts, list) and set(map(type, prompts)) != {int}
    return prompts if is_list else [prompts]


def _count_choices(params: Mapping[str, Any]) -> int:
    return max(_integer_or_default(params, "n", 1), _integer_or_default(params, "best_of", 1))


def logprobs_per_step(params: Mapping[str, Any]) -> int:
    """Return the number of log probabilities in one step, for all choices of one prompt."""
    logprobs, token_ids = params.get("logprobs"), params.get("logprob_token_ids")
    chosen = len(token_ids) if isinstance(token_ids, list) else 0
    if not chosen and (logprobs is None or logprobs is False):
        return 0
    # ``logprobs`` is a number or, in a chat, a switch, which vLLM's server also reads from 1.
    numbers = (_integer_or_default(params, name, 0) for name in ("logprobs", "top_logprobs"))
    return _count_choices(params) * (1 + max(chosen, *numbers))


def needs_list_queue(body: Mapping[str, Any]) -> bool:
    """Return whether the prompts of a body together need too many log probabilities in a step."""
    prompts = len(_list_prompts(body))
    return prompts > 1 and prompts * logprobs_per_step(body) > MAX_LIST_LOGPROBS_PER_STEP


def _integer_or_default(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number as vLLM's server reads it, also 5.0 and "5"; the default for all else."""
    number = parse_number(params.get(name))
    return default if number is None or not isfinite(number) else int(number)
