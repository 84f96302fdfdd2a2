"""What a request may hold before the engine has it: all bounds, in the order of their checks.

``check`` goes through ``CHECKS`` for requests of all forms: bodies of routes, lines of batches, raw
jobs and the items of lists. Rows without a function are checked by the module that they name:
before a job is anything, or once the tokenizer or objects of vLLM are at hand. ``docs/reference/
limits.md`` is written from this table, and a contract test fails for a key of vLLM's that is
neither in a row, nor among those that need no bound.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.chunking import ROOM_BYTES
from worker.limits import bodies, budget, parameters, shapes, structured, tools, work
from worker.limits.shapes import BESIDE, RAW, Shape
from worker.media import walker
from worker.settings import Settings


@dataclass(frozen=True, slots=True)
class Checked:
    """A request for the checks.

    Args:
        values: a body, or a raw job's keys and its sampling parameters in one object.
        shape: of the route.
        settings: the operator's.
        holder: the object of the sampling parameters; empty if it is the body.
        room: bytes that the answer has to fit; infinite if it comes in parts.
        by_priority: whether the engine orders requests by their priority.
    """

    values: Mapping[str, Any]
    shape: Shape
    settings: Settings
    holder: str = ""
    room: float = ROOM_BYTES
    by_priority: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """A row: some bounds that are checked together.

    Args:
        name: what they are of.
        requests: whose.
        keys: those of a body that they bound.
        limits: in words, a line each: what is bounded | the most, with its unit | a setting, or
            what else helps.
        function: checks a request, and raises ``RequestError``. None: the module below does.
        module: where the check is, if it is not one of ``limits``.
    """

    name: str
    requests: str
    keys: frozenset[str]
    limits: str
    function: Callable[[Checked], None] | None = None
    module: str = ""


def check(request: Checked) -> None:
    """Run all checks of a request.

    Raises:
        RequestError: it holds too much, or what it must not hold; naming the key and the bound.
    """
    for row in CHECKS:
        if row.function:
            row.function(request)


def _keys(request: Checked) -> None:
    walker.refuse(request.values)
    # Only for what it refuses: the media themselves are fetched and checked later.
    walker.find(request.values, request.shape.texts)


def _lists(request: Checked) -> None:
    if request.shape is not RAW:  # its lists are checked up to the first mistake
        bodies.check_lists(request.values)


def _allowed(request: Checked) -> None:
    bodies.check_allowed(request.values, request.settings, by_priority=request.by_priority)


def _response(request: Checked) -> None:
    if request.shape.items:
        bodies.check_response(request.values.get("input"))


def _work(request: Checked) -> None:
    holder = f"{request.holder}." if request.holder else ""
    work.check_work(request.values, room=request.room, holder=holder)


def _structured(request: Checked) -> None:
    values = request.values
    if request.shape is RAW:  # its tools are shown to the model: no answer is held to them
        values = {key: value for key, value in values.items() if key != "tools"}
    structured.Bounds.of(request.settings).check(values, request.holder, request.shape.texts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _parameters() -> Iterator[str]:
    """Yield a line for each bound, with all parameters that have it."""
    words: dict[str, list[str]] = {}
    for name, bound in parameters.BOUNDS.items():
        words.setdefault(bound.words, []).append(f"`{name}`")
    for most, names in words.items():
        yield f"{', '.join(names)} | {most} |"


_DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}
_BODIES = "routes of vLLM's server"
_ALL = "jobs and bodies of every form"

CHECKS = (
    Check(
        "Inputs",
        "all jobs, and bodies over HTTP",
        frozenset(),
        f"""
        text, keys and numbers, as UTF-8 | {_DEFAULTS["max_input_mb"]:g} MB; more is 413 \
        | `MAX_INPUT_MB`
        values, however deep inside | {_DEFAULTS["max_input_values"]:,} | `MAX_INPUT_VALUES`
        objects and lists inside one another | {_DEFAULTS["max_input_depth"]} | `MAX_INPUT_DEPTH`
        items of a list, keys of an object | {_DEFAULTS["max_input_items"]:,} | `MAX_INPUT_ITEMS`
        token ids: numbers in lists of nothing else, which count as bytes only \
        | {budget.MOST_TOKEN_IDS:,} |
        characters of a key | {budget.LONGEST_KEY} |
        bits of an integer | 64 |
        """,
        module="worker.limits.budget",
    ),
    Check(
        "Lists of raw jobs",
        "raw jobs with `prompts` or `messages_list`",
        frozenset(),
        f"""
        items | {work.MOST_PROMPTS:,} | several jobs, or a batch
        `sampling_params` for each item, with parameters beside them that they all repeat \
        | {work.MOST_REPEATED:,} characters in all | write them into `sampling_params`
        """,
        module="worker.job.raw",
    ),
    Check(
        "Keys that are the operator's",
        _ALL,
        frozenset({*walker.DENIED, tools.KWARGS, bodies.XARGS}),
        "\n".join(f"`{name}` | none | {reason}" for name, reason in walker.DENIED.items()),
        _keys,
    ),
    Check(
        "Lists",
        _BODIES,
        frozenset(),
        f"items of a list that is not of token ids | {bodies.MOST_ITEMS:,} |",
        _lists,
    ),
    Check(
        "Keys that an operator can allow",
        _BODIES,
        frozenset({bodies.XARGS, "priority", "encoding_format"}),
        f"""
        `{bodies.XARGS}` | none by default | `ALLOWED_XARGS` names them
        `priority` | none by default | `SCHEDULING_POLICY=priority`
        `encoding_format` | `float` or `base64` | answers are JSON
        """,
        _allowed,
    ),
    Check(
        "Responses",
        "`/v1/responses`",
        frozenset({"input"}),
        f"""
        items of `input` | {bodies.MOST_INPUT_ITEMS} |
        parts of an item | {bodies.MOST_PARTS} |
        """,
        _response,
    ),
    Check(
        "Tools and templates",
        _ALL,
        frozenset({"tools", "tool_choice", "messages", "input", tools.KWARGS}),
        f"""
        `tools` | {tools.MOST_TOOLS} |
        names of tools and functions, wherever they stand | 64 letters, digits and `._-` |
        keys of `{tools.KWARGS}` | {tools.MOST_VALUES}, each of 64 letters, digits and `_` |
        keys that vLLM sets there, or templates call: {_names(tools.RESERVED)} | none |
        """,
        lambda request: tools.check_tools(request.values),
    ),
    Check(
        "Sampling parameters",
        _ALL,
        frozenset(parameters.BOUNDS),
        "\n".join(_parameters()),
        lambda request: parameters.check_parameters(request.values, request.holder),
    ),
    Check(
        "Choices and log probabilities",
        _ALL,
        frozenset({"n", "best_of", "logprobs", "top_logprobs", "min_tokens", "max_tokens"}),
        f"""
        `n`, `best_of` | {work.MOST_CHOICES} |
        prompts of a completion times `n` | {work.MOST_CHOICES_AT_ONCE:,} | a batch
        log probabilities of one token of each choice: `n` (or `best_of`) times (1 + `logprobs`) \
        | {work.MOST_AT_ONCE:,}; of the items of a list that run at once {work.MOST_IN_LISTS} \
        | fewer of them; `MAX_LOGPROBS` bounds `logprobs`
        the same times `max_tokens`, with several choices and no stream \
        | {work.MOST_UNSTREAMED:,}; more is 413 | a stream
        the same times `min_tokens`, with no stream | what fits one yield; more is 413 | a stream
        """,
        _work,
    ),
    Check(
        "Structured outputs, tools, and keys that nobody knows",
        _ALL,
        structured.KEYS,
        f"""
        characters | {"; ".join(f"{kind} {most:,}" for kind, most in structured.LONGEST.items())} |
        objects and lists inside each other | {structured.DEEPEST} |
        properties | {structured.MOST_PROPERTIES:,} |
        values, or choices | {structured.MOST_VALUES:,} |
        branches of `allOf`, `anyOf`, `oneOf` | {structured.MOST_BRANCHES:,} |
        {_names(structured.COUNTED)} | {structured.MOST_TIMES:,} |
        regular expressions | {structured.MOST_PATTERNS:,} |
        rules, lines, alternatives of a grammar; alternatives of a regular expression \
        | {structured.MOST_RULES:,}; {structured.MOST_LINES:,}; {structured.MOST_ALTERNATIVES:,} |
        counts inside each other: `(a{{9}}){{9}}`, also through the rules of a grammar; with `*` \
        and `+` one more in a rule | {_DEFAULTS["structured_max_nesting"]} \
        | `STRUCTURED_MAX_NESTING`
        what these counts multiply to | {_DEFAULTS["structured_max_repetitions"]:,} \
        | `STRUCTURED_MAX_REPETITIONS`
        `$ref` | places in the same schema: it begins with # |
        """,
        _structured,
    ),
    Check(
        "Long texts",
        _ALL,
        frozenset(BESIDE),  # and the texts of each route (worker.routes.vllm)
        f"""
        characters of a text, or of a conversation | the tokens of the context times the \
        characters of the longest token; above {shapes.FEW:,} characters {shapes.MOST_PER_TOKEN} \
        for a token | `truncate_prompt_tokens`, where a route has it; a longer `MAX_MODEL_LEN`
        token ids of a prompt | the tokens of the context | `MAX_MODEL_LEN`
        characters for `/tokenize`, tokens for `/detokenize` | {shapes.MOST_ANSWERED:,} |
        """,
        module="worker.engine.run.requests.texts",
    ),
    Check(
        "Media",
        "conversations, inputs of embeddings, what is scored",
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
    Check(
        "Bad words",
        _ALL,
        frozenset({"bad_words"}),
        "tokens in all, with and without a space in front | 1,024 "
        "| `VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`",
        module="worker.engine.run.requests.bodies",
    ),
    Check(
        "Trial of structured outputs",
        "all that generate, with the backend `xgrammar`",
        structured.KEYS,
        f"""
        compiling one | {_DEFAULTS["structured_compile_s"]:g} seconds of one core; on one or two \
        cores 2 if unset | `STRUCTURED_COMPILE_S`
        following it, for a token | 0.1 seconds of one core |
        memory to compile one | 2 GB |
        """,
        module="worker.engine.run.grammar.process",
    ),
)
