"""What a request may hold before the engine has it: all bounds, in the order of their checks.

``check`` goes through ``CHECKS`` for requests of all forms: bodies of routes, lines of batches, raw
jobs and the items of lists. Rows without a function are checked by the module that they name:
before a job is anything, or once the tokenizer or objects of vLLM are at hand. ``docs/reference/
limits.md`` is written from this table, and a contract test fails for a key of vLLM's that is
neither in a row, nor among those that need no bound.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from worker.chunking import ROOM_BYTES
from worker.limits import bodies, budget, parameters, shapes, structured, tools, work
from worker.limits.shapes import BESIDE, RAW, RESPONSES, Shape
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


class Limit(NamedTuple):
    """One bound in words: what is bounded, the most with its unit, and what raises or helps."""

    what: str
    most: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A row: some bounds that are checked together.

    Args:
        name: what they are of.
        requests: whose.
        keys: those of a body that they bound.
        limits: for the documentation.
        function: checks a request, and raises ``RequestError``. None: the module below does.
        module: where the check is, if it is not one of ``limits``.
    """

    name: str
    requests: str
    keys: frozenset[str]
    limits: tuple[Limit, ...]
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
    walker.find(request.values, request.shape.texts)


def _lists(request: Checked) -> None:
    if request.shape is not RAW:  # its lists are checked up to the first mistake
        bodies.check_lists(request.values)


def _allowed(request: Checked) -> None:
    bodies.check_allowed(request.values, request.settings, by_priority=request.by_priority)


def _response(request: Checked) -> None:
    if request.shape is RESPONSES:
        bodies.check_response(request.values.get("input"))


def _work(request: Checked) -> None:
    holder = f"{request.holder}." if request.holder else ""
    work.check_work(request.values, room=request.room, holder=holder)


def _structured(request: Checked) -> None:
    values = request.values
    if request.shape is RAW:  # its tools are shown to the model: no answer is held to them
        values = {key: value for key, value in values.items() if key != "tools"}
    structured.check_structured(values, request.holder)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _parameters() -> Iterator[Limit]:
    """Yield a line for each bound, with all parameters that have it."""
    words: dict[str, list[str]] = {}
    for name, bound in parameters.BOUNDS.items():
        words.setdefault(bound.words, []).append(f"`{name}`")
    for most, names in words.items():
        yield Limit(", ".join(names), most)


_DEFAULTS = Settings.model_fields
_BODIES = "routes of vLLM's server"
_ALL = "jobs and bodies of every form"

CHECKS = (
    Check(
        "Inputs",
        "all jobs, and bodies over HTTP",
        frozenset(),
        (
            Limit(
                "text, keys and numbers, as UTF-8",
                f"{_DEFAULTS['max_input_mb'].default:g} MB; more is 413",
                "`MAX_INPUT_MB`",
            ),
            Limit(
                "values, however deep inside",
                f"{_DEFAULTS['max_input_values'].default:,}",
                "`MAX_INPUT_VALUES`",
            ),
            Limit(
                "objects and lists inside one another",
                f"{_DEFAULTS['max_input_depth'].default:,}",
                "`MAX_INPUT_DEPTH`",
            ),
            Limit(
                "items of a list, keys of an object",
                f"{_DEFAULTS['max_input_items'].default:,}",
                "`MAX_INPUT_ITEMS`",
            ),
            Limit(
                "token ids: numbers in lists of nothing else, which count as bytes only",
                f"{budget.MOST_TOKEN_IDS:,}",
            ),
            Limit("characters of a key", f"{budget.LONGEST_KEY}"),
            Limit("bits of an integer", "64"),
        ),
        module="worker.limits.budget",
    ),
    Check(
        "Lists of raw jobs",
        "raw jobs with `prompts` or `messages_list`",
        frozenset(),
        (
            Limit("items", f"{work.MOST_PROMPTS:,}", "several jobs, or a batch"),
            Limit(
                "`sampling_params` for each item, with parameters beside them that they all repeat",
                f"{work.MOST_REPEATED:,} characters in all",
                "write them into `sampling_params`",
            ),
        ),
        module="worker.job.raw",
    ),
    Check(
        "Keys that are the operator's",
        _ALL,
        frozenset({*walker.DENIED, "chat_template_kwargs", bodies.XARGS}),
        tuple(
            Limit(f"`{name}`", "not in a request", reason) for name, reason in walker.DENIED.items()
        ),
        _keys,
    ),
    Check(
        "Lists",
        _BODIES,
        frozenset(),
        (Limit("items of a list that is not of token ids", f"{bodies.MOST_ITEMS:,}"),),
        _lists,
    ),
    Check(
        "Keys that an operator can allow",
        _BODIES,
        frozenset({bodies.XARGS, "priority", "encoding_format"}),
        (
            Limit(f"`{bodies.XARGS}`", "none by default", "`ALLOWED_XARGS` names them"),
            Limit("`priority`", "none by default", "`SCHEDULING_POLICY=priority`"),
            Limit("`encoding_format`", "`float` or `base64`", "answers are JSON"),
        ),
        _allowed,
    ),
    Check(
        "Responses",
        f"`{RESPONSES.path}`",
        frozenset({"input"}),
        (
            Limit("items of `input`", f"{bodies.MOST_INPUT_ITEMS}"),
            Limit("parts of an item", f"{bodies.MOST_PARTS}"),
        ),
        _response,
    ),
    Check(
        "Tools and templates",
        _ALL,
        frozenset({"tools", "tool_choice", "messages", "input", tools.KWARGS}),
        (
            Limit("`tools`", f"{tools.MOST_TOOLS}"),
            Limit(
                "names of tools and functions, wherever they stand",
                "64 letters, digits and `._-`",
            ),
            Limit(f"keys of `{tools.KWARGS}`", f"{tools.MOST_VALUES}"),
            Limit(
                f"a key of `{tools.KWARGS}`",
                f"64 letters, digits and `_`; none of {_code(tools.RESERVED)}",
                "vLLM sets these itself, and templates call some",
            ),
        ),
        lambda request: tools.check_tools(request.values),
    ),
    Check(
        "Sampling parameters",
        _ALL,
        frozenset(parameters.BOUNDS),
        tuple(_parameters()),
        lambda request: parameters.check_parameters(request.values, request.holder),
    ),
    Check(
        "Choices and log probabilities",
        _ALL,
        frozenset({"n", "best_of", "logprobs", "top_logprobs", "min_tokens", "max_tokens"}),
        (
            Limit("`n`, `best_of`", f"{work.MOST_CHOICES}"),
            Limit("prompts of a completion times `n`", f"{work.MOST_CHOICES_AT_ONCE:,}", "a batch"),
            Limit(
                "log probabilities of one token of each choice: `n` (or `best_of`) times "
                "(1 + `logprobs`)",
                f"{work.MOST_AT_ONCE:,}; of the items of a list that run at once "
                f"{work.MOST_IN_LISTS}",
                "ask for fewer; `MAX_LOGPROBS` bounds `logprobs`",
            ),
            Limit(
                "the same times `max_tokens`, with several choices and no stream",
                f"{work.MOST_UNSTREAMED:,}; more is 413",
                "a stream",
            ),
            Limit(
                "the same times `min_tokens`, with no stream",
                "what fits one yield; more is 413",
                "a stream",
            ),
        ),
        _work,
    ),
    Check(
        "Structured outputs, tools, and keys that nobody knows",
        _ALL,
        structured.KEYS,
        (
            *(
                Limit(f"characters of a {kind}", f"{most:,}")
                for kind, most in structured.LONGEST.items()
            ),
            Limit("objects and lists inside each other", f"{structured.DEEPEST}"),
            Limit("lines of a grammar", f"{structured.MOST_LINES:,}"),
            *(Limit(name, f"{most:,}") for name, most in dict.fromkeys(structured.COUNTS.values())),
            Limit(_code(structured.TIMES), f"{structured.MOST_TIMES:,}"),
            Limit("`$ref`", "places in the same schema: it begins with #"),
        ),
        _structured,
    ),
    Check(
        "Long texts",
        _ALL,
        shapes.TEXTS.union(BESIDE),
        (
            Limit(
                "characters of a text, or of a conversation",
                f"the tokens of the context times the characters of the longest token; above "
                f"{shapes.FEW:,} characters {shapes.MOST_PER_TOKEN} for a token",
                "`truncate_prompt_tokens`, where a route has it; a longer `MAX_MODEL_LEN`",
            ),
            Limit("token ids of a prompt", "the tokens of the context", "`MAX_MODEL_LEN`"),
            Limit(
                "characters for `/tokenize`, tokens for `/detokenize`", f"{shapes.MOST_ANSWERED:,}"
            ),
        ),
        module="worker.engine.run.requests.texts",
    ),
    Check(
        "Media",
        "conversations, inputs of embeddings, what is scored",
        frozenset(),
        (
            Limit(
                "media of a request",
                f"{_DEFAULTS['media_max_parts'].default}",
                "`MEDIA_MAX_PARTS`",
            ),
            Limit(
                "one of them; all together four times as much",
                f"{_DEFAULTS['media_max_mb'].default} MB",
                "`MEDIA_MAX_MB`",
            ),
            Limit(
                "pixels of an image; all together eight times as many",
                "40,000,000",
                "`VLLM_MAX_IMAGE_PIXELS`",
            ),
            Limit(
                "fetching and checking all of them",
                f"{_DEFAULTS['media_fetch_timeout_s'].default:g} seconds",
                "`MEDIA_FETCH_TIMEOUT_S`",
            ),
        ),
        module="worker.media.loader",
    ),
    Check(
        "Bad words",
        _ALL,
        frozenset({"bad_words"}),
        (
            Limit(
                "tokens of `bad_words`, with and without a space in front",
                "1,024 in all",
                "`VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`",
            ),
        ),
        module="worker.engine.run.requests.bodies",
    ),
    Check(
        "Trial of structured outputs",
        "all that generate, with the backend `xgrammar`",
        structured.KEYS,
        (
            Limit(
                "compiling one, and following it for some tokens",
                f"{_DEFAULTS['structured_compile_s'].default:g} seconds of one core; on one or two "
                "cores 2 if unset",
                "`STRUCTURED_COMPILE_S`",
            ),
            Limit("memory to compile one", "2 GB"),
        ),
        module="worker.engine.run.grammar.process",
    ),
)
