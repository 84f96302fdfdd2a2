"""All limits of a request, in the order of the checks, each with the harm that it prevents.

A request is refused only if it is wrong for its API, or if it would harm others. All else that
vLLM's own server accepts is accepted.

``check_request`` runs ``LIMITS`` for requests of all forms: bodies of routes, lines of batches, raw
jobs and the items of lists. A row without a function names the module that does the check: when the
input arrives, or when the tokenizer or vLLM's objects are available. ``docs/reference/limits.md``
is generated from this table. A contract test fails for a key of vLLM's that is neither in a row nor
among the keys that need no bound.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from worker.chunking import RESULT_LIMIT_BYTES
from worker.limits import bodies, parameters, texts, work
from worker.limits.bodies import TEMPLATE_KEYS, BodyShape
from worker.limits.parameters import GUIDED_KEYS, GUIDED_OBJECTS
from worker.media import walker
from worker.settings import Settings


@dataclass(frozen=True, slots=True)
class RequestToCheck:
    """A request, as the checks need it.

    Args:
        values: A body, or the keys and sampling parameters of a raw job in one object.
        shape: The shape of the route's body.
        settings: The operator's settings.
        holder: Name of the object with the sampling parameters; empty if it is the body.
        max_answer_bytes: Maximum bytes of the response; infinite if the response comes in parts.
    """

    values: Mapping[str, Any]
    shape: BodyShape
    settings: Settings
    holder: str = ""
    max_answer_bytes: float = RESULT_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class Limit:
    """A row of the table: limits that are checked together.

    Args:
        name: Heading of the row.
        keys: The keys of a body that the limits apply to; empty if they don't depend on keys.
        limits: The limits as text, one per line: the limited quantity | the maximum with its unit |
            a setting, or another remedy.
        harm: Measured harm of a request that exceeds them, to others or to its own answer.
        attacks: Names of the hostile requests that show the harm (``tests/support/tables``).
        function: Checks a request, and raises ``RequestError``; None if ``module`` does the check.
        module: Module that does the check, for a row without a function.
    """

    name: str
    keys: frozenset[str]
    limits: str
    harm: str
    attacks: tuple[str, ...]
    function: Callable[[RequestToCheck], None] | None = None
    module: str = ""


def check_request(request: RequestToCheck) -> None:
    """Run all checks for a request.

    Raises:
        RequestError: If the request exceeds a limit, or has a refused key; it names the key.
    """
    for row in LIMITS:
        if row.function:
            row.function(request)


def _check_denied_keys_and_media(request: RequestToCheck) -> None:
    walker.refuse_denied_keys(request.values)
    # Called for its errors only: the media are fetched and checked later.
    walker.find_media(request.values, request.shape.text_keys)
    bodies.check_operator_keys(request.values, request.settings)


def _check_requested_work(request: RequestToCheck) -> None:
    holder = f"{request.holder}." if request.holder else ""
    work.check_requested_work(
        request.values,
        max_answer_bytes=request.max_answer_bytes,
        max_output_tokens=request.settings.max_output_tokens or inf,
        holder=holder,
    )


def _join_quoted_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _parameter_bound_lines() -> Iterator[str]:
    """Yield a line for each bound, with the parameters that share it."""
    descriptions: dict[str, list[str]] = {}
    for name, bound in parameters.BOUNDS.items():
        descriptions.setdefault(bound.description, []).append(f"`{name}`")
    for description, names in descriptions.items():
        yield f"{', '.join(names)} | {description} |"


def _denied_key_lines() -> Iterator[str]:
    """Yield a line for each reason, with the keys that are refused for it."""
    reasons: dict[str, list[str]] = {}
    for name, reason in walker.DENIED_KEYS.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield f"{_join_quoted_names(names)} | none | {reason}"


_DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}

LIMITS = (
    Limit(
        "Inputs",
        frozenset(),
        f"""
        text, keys and numbers, as UTF-8 | {_DEFAULTS["max_input_mb"]:g} MB; more is 413 \
        | `MAX_INPUT_MB`
        values, at any depth | {bodies.MAX_VALUES:,} | a batch, or several jobs
        nesting depth of objects and lists | {bodies.MAX_DEPTH} |
        token ids: numbers in lists of nothing else | {bodies.MAX_TOKEN_IDS:,} |
        """,
        "vLLM stores errors for each wrong value: half a gigabyte, while others wait. Libraries "
        "recurse.",
        ("500,000 messages of 0", "0, then 60,000 empty messages", "100,000 levels of tools"),
        module="worker.limits.bodies",
    ),
    Limit(
        "Lists of raw jobs",
        frozenset(),
        f"""
        items of `prompts` or `messages_list` | {work.MAX_PROMPTS:,} | several jobs, or a batch
        characters next to a list of `sampling_params` | {work.MAX_REPEATED_CHARACTERS:,} \
        | write them into `sampling_params`
        """,
        "Each item is a request with a copy of them.",
        ("10,001 prompts",),
        module="worker.job.raw",
    ),
    Limit(
        "Keys that are the operator's",
        frozenset({*walker.DENIED_KEYS, bodies.TEMPLATE_KWARGS, bodies.VLLM_XARGS}),
        "\n".join(
            (
                *_denied_key_lines(),
                f"`{bodies.VLLM_XARGS}` | none by default | `ALLOWED_XARGS` lists the keys",
                "`encoding_format` | `float` or `base64` | answers are JSON",
                f"names in `{bodies.TEMPLATE_KWARGS}` that vLLM sets itself: `tokenizer`, "
                "`max_length`, … | none |",
            )
        ),
        "They reach other machines, other callers' media, files, or functions of vLLM that kill "
        "the engine or take all memory.",
        ("kv_transfer_params in vllm_xargs", "a picture with a uuid", "tokenizer", "max_length"),
        _check_denied_keys_and_media,
    ),
    Limit(
        "Sampling parameters",
        frozenset(parameters.BOUNDS),
        "\n".join(
            (
                *_parameter_bound_lines(),
                "tokens of `bad_words`, with and without a leading space | 1,024 "
                "| `VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`",
            )
        ),
        "A larger value raises in the step that all requests share, where vLLM's runner for GPUs "
        "has arrays of this size, and the engine dies. Stop strings are searched for each token. "
        "Penalties overflow. `logit_bias` has the range of OpenAI's API.",
        (
            *("seed 2**63", "1,025 allowed ids", "logit_bias of 1,025 ids"),
            *("129 stop ids with min_tokens", "beam length_penalty -400", "100,000 stop strings"),
            "a bad word of 1,100 words",
        ),
        lambda request: parameters.check_parameter_bounds(request.values, request.holder),
    ),
    Limit(
        "Choices, and the work that they multiply",
        frozenset({"n", "best_of", "logprobs", "top_logprobs", "min_tokens", "max_tokens"}),
        f"""
        `n`, `best_of` | {work.MAX_CHOICES} |
        prompts of a completion times `n` | {work.MAX_CONCURRENT_CHOICES:,} | a batch
        `n` times (1 + `logprobs`, or `logprob_token_ids`) \
        | {work.MAX_LOGPROBS_PER_STEP:,}; {work.MAX_MANY_LOGPROBS_PER_STEP} with more than \
        {work.MANY_ALTERNATIVES} per choice; {work.MAX_LIST_LOGPROBS_PER_STEP} in a list \
        | `MAX_LOGPROBS`
        these times `max_tokens`, if several choices are not streamed \
        | {work.MAX_UNSTREAMED_LOGPROBS:,}; more is 413 | a stream
        these times `min_tokens`, without a stream \
        | {RESULT_LIMIT_BYTES / 1e6:g} MB, a result; more is 413 | a stream
        `n` times (1 + `prompt_logprobs`, or `logprobs` with `echo`), with several choices \
        | {work.MAX_PROMPT_LOGPROBS} |
        these for all tokens of several prompts ({work.CHARACTERS_PER_TOKEN} characters each), \
        without a stream | {work.MAX_PROMPT_LOGPROBS_PER_ANSWER:,}; more is 413 |
        `repetition_detection`: (`min_count` - 1) times the sum of all pattern sizes \
        | {work.MAX_COMPARISONS:,} |
        these times `n` | {work.MAX_COMPARISONS_PER_STEP:,}; above \
        {work.MIN_COSTLY_COMPARISONS:,} requests share {work.MAX_CONCURRENT_COMPARISONS:,} |
        """,
        "All of this happens in the step that all requests share: 5 to 10 us for a log "
        "probability, 0.05 us for a comparison.",
        (
            *("n 256 with 20 logprobs, 60 tokens", "n 112 with repetition_detection"),
            *("60 long prompts with echo and 20 logprobs", "100 prompts with n 16"),
        ),
        _check_requested_work,
    ),
    Limit(
        "Long texts",
        frozenset({*TEMPLATE_KEYS, "tools"}),  # and the texts of each route (worker.routes.vllm)
        f"""
        characters of a text, or of a conversation | the context times the longest token; above \
        {texts.EXEMPT_CHARACTERS:,} characters {texts.MAX_CHARACTERS_PER_TOKEN} per token \
        | `truncate_prompt_tokens`, where a route has it
        token ids of a prompt | the tokens of the context | `MAX_MODEL_LEN`
        characters for `/tokenize`, tokens for `/detokenize` | {texts.MAX_ECHO_SIZE:,} |
        """,
        "They can't fit the context, but tokenizing takes a second for a few megabytes, in one of "
        "few threads.",
        ("900 KB", "3 MB with token strings", "5 MB, cut to 10 tokens"),
        module="worker.limits.texts",
    ),
    Limit(
        "Media",
        frozenset(),
        f"""
        media of a request | {_DEFAULTS["media_max_parts"]} | `MEDIA_MAX_PARTS`
        one of them; all together four times as much | {_DEFAULTS["media_max_mb"]} MB \
        | `MEDIA_MAX_MB`
        pixels of an image; all together eight times as many | 40,000,000 | `VLLM_MAX_IMAGE_PIXELS`
        fetching and checking all of them | {_DEFAULTS["media_fetch_timeout_s"]:g} seconds \
        | `MEDIA_FETCH_TIMEOUT_S`
        """,
        "A small file can become gigabytes of pixels, and an address can lead into the network of "
        "the worker.",
        (),
        module="worker.media.loader",
    ),
    Limit(
        "Grammars",
        GUIDED_KEYS | GUIDED_OBJECTS | {"response_format", "text", "output_config", "tool_choice"},
        f"""
        characters | {work.MAX_CHARACTERS:,} |
        compiling; parsing | {work.MAX_COMPILE_S:g} s of one core \
        ({work.SINGLE_THREAD_COMPILE_S:g} s on a machine with one or two); \
        {work.MAX_PARSE_S:g} s |
        applying it to a token; to one of each choice; if tokens take ever longer \
        | {work.MAX_TOKEN_S:g} s; {work.MAX_CHOICES_TOKEN_S:g} s; \
        {work.MAX_GROWING_TOKEN_S:g} s |
        memory to compile it | {work.MAX_MEMORY_BYTES >> 30} GB |
        """,
        "The engine compiles grammars without a limit of time, and follows them in the step that "
        "all requests share: seconds for a token of a few nested counts. Grammars are made of "
        "`response_format`, structured outputs, and tools that are `strict`, required or named; "
        "all other tools are text for the chat template.",
        ("three nested repetitions", "nested repetitions in a pattern", "6,000 properties"),
        module="worker.engine.run.grammar.gate",
    ),
)
