"""All limits for requests, in the order of their checks.

``check_request`` runs ``CHECKS`` for requests of all forms: bodies of routes, lines of batches, raw
jobs and the items of lists. A row without a function names the module that does the check: when the
input arrives, or when the tokenizer or vLLM's objects are available. ``docs/reference/limits.md``
is generated from this table. A contract test fails for a key of vLLM's that is neither in a row nor
among the keys that need no bound.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from worker.chunking import PIECES_LIMIT_BYTES
from worker.limits import bodies, budget, parameters, shapes, structured, tools, work
from worker.limits.shapes import RAW_SHAPE, TEMPLATE_KEYS, BodyShape
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
        has_priorities: Whether the engine schedules requests by priority.
    """

    values: Mapping[str, Any]
    shape: BodyShape
    settings: Settings
    holder: str = ""
    max_answer_bytes: float = PIECES_LIMIT_BYTES
    has_priorities: bool = False


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A row of the table: limits that are checked together.

    Args:
        name: Heading of the row.
        requests: The requests that the limits apply to, as text.
        keys: The keys of a body that the limits apply to; empty if they don't depend on keys.
        limits: The limits as text, one per line: the limited quantity | the maximum with its unit |
            a setting, or another remedy.
        function: Checks a request, and raises ``RequestError``; None if ``module`` does the check.
        module: Module that does the check, for a row without a function.
    """

    name: str
    requests: str
    keys: frozenset[str]
    limits: str
    function: Callable[[RequestToCheck], None] | None = None
    module: str = ""


def check_request(request: RequestToCheck) -> None:
    """Run all checks for a request.

    Raises:
        RequestError: If the request exceeds a limit, or has a refused key; it names the key.
    """
    for row in CHECKS:
        if row.function:
            row.function(request)


def _check_denied_keys_and_media(request: RequestToCheck) -> None:
    walker.refuse_denied_keys(request.values)
    # Called for its errors only: the media are fetched and checked later.
    walker.find_media(request.values, request.shape.text_keys)


def _check_list_lengths(request: RequestToCheck) -> None:
    if request.shape is not RAW_SHAPE:  # the lists of a raw job are validated up to the first error
        bodies.check_list_lengths(request.values)


def _check_restricted_keys(request: RequestToCheck) -> None:
    bodies.check_restricted_keys(
        request.values, request.settings, has_priorities=request.has_priorities
    )


def _check_responses_input(request: RequestToCheck) -> None:
    if request.shape.accepts_items:
        bodies.check_responses_input(request.values.get("input"))


def _check_requested_work(request: RequestToCheck) -> None:
    holder = f"{request.holder}." if request.holder else ""
    work.check_requested_work(
        request.values,
        max_answer_bytes=request.max_answer_bytes,
        max_output_tokens=request.settings.max_output_tokens or inf,
        holder=holder,
    )


def _check_structured_outputs(request: RequestToCheck) -> None:
    values = request.values
    if request.shape is RAW_SHAPE:  # its tools are only rendered: they constrain no output
        values = {key: value for key, value in values.items() if key != "tools"}
    limits = structured.StructuredOutputLimits.from_settings(request.settings)
    limits.check_constraints(values, request.holder, request.shape.text_keys)


def _join_quoted_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _join_maximums(maximums: Mapping[str, int]) -> str:
    return "; ".join(f"{name} {maximum:,}" for name, maximum in maximums.items())


def _parameter_bound_lines() -> Iterator[str]:
    """Yield a line for each bound, with the parameters that share it."""
    descriptions: dict[str, list[str]] = {}
    for name, bound in parameters.BOUNDS.items():
        descriptions.setdefault(bound.description, []).append(f"`{name}`")
    for description, names in descriptions.items():
        yield f"{', '.join(names)} | {description} |"


_DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}
_SERVER_ROUTES = "routes of vLLM's server"
_ALL_REQUESTS = "jobs and bodies of every form"

CHECKS = (
    CheckRow(
        "Inputs",
        "all jobs, and bodies over HTTP",
        frozenset(),
        f"""
        text, keys and numbers, as UTF-8 | {_DEFAULTS["max_input_mb"]:g} MB; more is 413 \
        | `MAX_INPUT_MB`
        values, at any depth | {_DEFAULTS["max_input_values"]:,} | `MAX_INPUT_VALUES`
        nesting depth of objects and lists | {_DEFAULTS["max_input_depth"]} | `MAX_INPUT_DEPTH`
        items of a list, keys of an object | {_DEFAULTS["max_input_items"]:,} | `MAX_INPUT_ITEMS`
        token ids: numbers in lists of nothing else, which count as bytes only \
        | {budget.MAX_TOKEN_IDS:,} |
        characters of a key | {budget.MAX_KEY_CHARACTERS} |
        bits of an integer | 64 |
        """,
        module="worker.limits.budget",
    ),
    CheckRow(
        "Lists of raw jobs",
        "raw jobs with `prompts` or `messages_list`",
        frozenset(),
        f"""
        items | {work.MAX_PROMPTS:,} | several jobs, or a batch
        `sampling_params` for each item, with parameters outside of them that all items repeat \
        | {work.MAX_REPEATED_CHARACTERS:,} characters in all | write them into `sampling_params`
        """,
        module="worker.job.raw",
    ),
    CheckRow(
        "Keys that are the operator's",
        _ALL_REQUESTS,
        frozenset({*walker.DENIED_KEYS, tools.TEMPLATE_KWARGS, bodies.VLLM_XARGS}),
        "\n".join(f"`{name}` | none | {reason}" for name, reason in walker.DENIED_KEYS.items()),
        _check_denied_keys_and_media,
    ),
    CheckRow(
        "Lists",
        _SERVER_ROUTES,
        frozenset(),
        f"items of a list that is not of token ids | {bodies.MAX_LIST_ITEMS:,} |",
        _check_list_lengths,
    ),
    CheckRow(
        "Keys that an operator can allow",
        _SERVER_ROUTES,
        frozenset({bodies.VLLM_XARGS, "priority", "encoding_format"}),
        f"""
        `{bodies.VLLM_XARGS}` | none by default | `ALLOWED_XARGS` lists the keys
        `priority` | none by default | `SCHEDULING_POLICY=priority`
        `encoding_format` | `float` or `base64` | answers are JSON
        """,
        _check_restricted_keys,
    ),
    CheckRow(
        "Responses",
        "`/v1/responses`",
        frozenset({"input"}),
        f"""
        items of `input` | {bodies.MAX_INPUT_ITEMS} |
        parts of an item | {bodies.MAX_ITEM_PARTS} |
        """,
        _check_responses_input,
    ),
    CheckRow(
        "Tools and templates",
        _ALL_REQUESTS,
        frozenset({"tools", "tool_choice", "messages", "input", tools.TEMPLATE_KWARGS}),
        f"""
        `tools` | {tools.MAX_TOOLS} |
        names of tools and functions, wherever they occur | 64 letters, digits and `._-` |
        keys of `{tools.TEMPLATE_KWARGS}` \
        | {tools.MAX_TEMPLATE_VALUES}, each of 64 letters, digits and `_` |
        keys that vLLM sets there, or templates call: {_join_quoted_names(tools.RESERVED_NAMES)} \
        | none |
        """,
        lambda request: tools.check_tools(request.values),
    ),
    CheckRow(
        "Sampling parameters",
        _ALL_REQUESTS,
        frozenset(parameters.BOUNDS),
        "\n".join(_parameter_bound_lines()),
        lambda request: parameters.check_parameter_bounds(request.values, request.holder),
    ),
    CheckRow(
        "Choices, and the work that they multiply",
        _ALL_REQUESTS,
        frozenset({"n", "best_of", "logprobs", "top_logprobs", "min_tokens", "max_tokens"}),
        f"""
        `n`, `best_of` | {work.MAX_CHOICES} |
        prompts of a completion times `n` | {work.MAX_CONCURRENT_CHOICES:,} | a batch
        log probabilities of one token of each choice: `n` (or `best_of`) times (1 + `logprobs`, \
        or the number of `logprob_token_ids`) \
        | {work.MAX_LOGPROBS_PER_STEP:,}; {work.MAX_MANY_LOGPROBS_PER_STEP} with more than \
        {work.MANY_ALTERNATIVES} for a token of several choices; of the items of a list that run \
        concurrently {work.MAX_LIST_LOGPROBS_PER_STEP} \
        | fewer of them; `MAX_LOGPROBS` bounds `logprobs`
        the same times `max_tokens`, with several choices and no stream \
        | {work.MAX_UNSTREAMED_LOGPROBS:,}; more is 413 | a stream
        the same times `min_tokens`, with no stream \
        | what fits into one yield; more is 413 | a stream
        log probabilities of a prompt's token, with several choices: `n` times \
        (1 + `prompt_logprobs`, or with `echo` 1 + `logprobs`) \
        | {work.MAX_PROMPT_LOGPROBS} | fewer choices
        the same of all tokens of all prompts, with several of them and no stream; a text counts \
        as a token for each {work.CHARACTERS_PER_TOKEN} characters \
        | {work.MAX_PROMPT_LOGPROBS_PER_ANSWER:,}; more is 413 | fewer prompts
        tokens that `repetition_detection` may compare for a token: (`min_count` - 1) times the \
        sum of all numbers from `min_pattern_size` to `max_pattern_size` \
        | {work.MAX_COMPARISONS:,} | smaller patterns, or fewer of them
        the same times `n` \
        | {work.MAX_COMPARISONS_PER_STEP:,}; of all requests with more than \
        {work.MIN_COSTLY_COMPARISONS:,} for a token {work.MAX_CONCURRENT_COMPARISONS:,}, \
        and others wait | fewer choices
        """,
        _check_requested_work,
    ),
    CheckRow(
        "Structured outputs, tools, and unknown keys",
        _ALL_REQUESTS,
        structured.CONSTRAINT_KEYS,
        f"""
        characters | {_join_maximums(structured.MAX_CHARACTERS)} |
        nesting depth of objects and lists | {structured.MAX_DEPTH} |
        properties | {structured.MAX_PROPERTIES:,} |
        values, or choices | {structured.MAX_VALUES:,} |
        branches of `allOf`, `anyOf`, `oneOf` | {structured.MAX_BRANCHES:,} |
        {_join_quoted_names(structured.SIZE_KEYWORDS)} | {structured.MAX_SIZE:,} |
        regular expressions | {structured.MAX_PATTERNS:,} |
        rules, lines, alternatives of a grammar; alternatives of a regular expression \
        | {structured.MAX_RULES:,}; {structured.MAX_LINES:,}; {structured.MAX_ALTERNATIVES:,} |
        nested counts: `(a{{9}}){{9}}`, also through the rules of a grammar; with `*` \
        and `+` one more in a rule | {_DEFAULTS["structured_max_nesting"]} \
        | `STRUCTURED_MAX_NESTING`
        product of these counts | {_DEFAULTS["structured_max_repetitions"]:,} \
        | `STRUCTURED_MAX_REPETITIONS`
        `$ref` | only within the same schema, so it begins with `#` |
        """,
        _check_structured_outputs,
    ),
    CheckRow(
        "Long texts",
        _ALL_REQUESTS,
        frozenset(TEMPLATE_KEYS),  # and the texts of each route (worker.routes.vllm)
        f"""
        characters of a text, or of a conversation | the tokens of the context times the \
        characters of the longest token; above {shapes.EXEMPT_CHARACTERS:,} characters \
        {shapes.MAX_CHARACTERS_PER_TOKEN} \
        per token | `truncate_prompt_tokens`, where a route has it; a longer `MAX_MODEL_LEN`
        token ids of a prompt | the tokens of the context | `MAX_MODEL_LEN`
        characters for `/tokenize`, tokens for `/detokenize` | {shapes.MAX_ECHO_SIZE:,} |
        """,
        module="worker.engine.run.requests.texts",
    ),
    CheckRow(
        "Media",
        "conversations, inputs of embeddings, and texts to score",
        frozenset(),
        f"""
        media of a request | {_DEFAULTS["media_max_parts"]} | `MEDIA_MAX_PARTS`
        one of them; all together four times as much | {_DEFAULTS["media_max_mb"]} MB \
        | `MEDIA_MAX_MB`
        pixels of an image; all together eight times as many | 40,000,000 | `VLLM_MAX_IMAGE_PIXELS`
        fetching and checking all of them | {_DEFAULTS["media_fetch_timeout_s"]:g} seconds \
        | `MEDIA_FETCH_TIMEOUT_S`
        """,
        module="worker.media.loader",
    ),
    CheckRow(
        "Bad words",
        _ALL_REQUESTS,
        frozenset({"bad_words"}),
        "tokens in total, with and without a leading space | 1,024 "
        "| `VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`",
        module="worker.engine.run.requests.bodies",
    ),
    CheckRow(
        "Trial of structured outputs",
        "all requests that generate text, with the backend `xgrammar`",
        structured.CONSTRAINT_KEYS,
        f"""
        compiling one | {_DEFAULTS["structured_compile_s"]:g} seconds of one core; on one or two \
        cores 2 if unset | `STRUCTURED_COMPILE_S`
        applying it to one token | 0.1 seconds of one core |
        the same for one token of each choice, on average | 0.05 seconds | fewer choices
        the same for one token, if each further token takes ever longer | 0.01 seconds |
        memory to compile one | 2 GB |
        """,
        module="worker.engine.run.grammar.process",
    ),
)
