"""Bodies of requests: their shapes, their sizes, and the checks before an engine is used.

``check_size`` walks over the input of a job, or a body over HTTP, before anything else reads it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.chunking import RESULT_LIMIT_BYTES
from worker.errors import InputTooLarge, InvalidInput, field_error
from worker.limits import parameters, work
from worker.limits.parameters import STRUCTURED_OUTPUTS
from worker.media import walker
from worker.settings import Settings
from worker.validation import MAX_KEY_LENGTH

MEGABYTE = 1_000_000
DEFAULT_MEGABYTES: float = Settings.model_fields["max_input_mb"].default
# Bytes counted for each value: a number, a boolean, null or brackets. Text counts in addition.
BYTES_PER_VALUE = 4
# Maximum values of an input, and maximum token ids. Only lists of nothing but integers are token
# ids. They don't count as values, since a context holds many and they are checked quickly.
MAX_VALUES = 100_000
MAX_TOKEN_IDS = 1_500_000
MAX_DEPTH = 200

# Limits for a path in an error message: characters of one name, and number of names.
MAX_NAME_CHARACTERS = 64
MAX_NAMES = 8

# Key of custom arguments for sampling plugins and other extensions of vLLM.
VLLM_XARGS = "vllm_xargs"
TEMPLATE_KWARGS = "chat_template_kwargs"
# Names that callers must not set: parameters of the functions that vLLM passes the template values
# to, and functions that templates call. For example, a template is rendered and tokenized in one
# call, where ``max_length`` and ``padding`` could request billions of tokens.
RESERVED_TEMPLATE_NAMES = frozenset(
    """
    chat_template conversation conversations kwargs max_length messages model_config padding
    raise_exception return_assistant_tokens_mask return_dict return_tensors self strftime_now
    tokenize tokenizer tokenizer_kwargs tools truncation trust_remote_code
    """.split()
)
# Encodings of embeddings that need a binary response. The worker's responses are JSON.
BINARY_ENCODINGS = ("bytes", "bytes_only")

# Keys whose texts are parts of one conversation.
CONVERSATION_KEYS = ("messages", "system", "instructions")
# Further keys that a chat template can render.
TEMPLATE_KEYS = ("tools", "chat_template_kwargs", "documents")
# Keys that become text at the latest in a chat template: any value that JSON has is allowed.
RENDERED_KEYS = frozenset({*CONVERSATION_KEYS, *TEMPLATE_KEYS, "input", "metadata"})

# Place of a value: the place of its container, and its key or index there. None for the input.
Place = tuple[Any, str | int] | None


@dataclass(frozen=True, slots=True)
class BodyShape:
    """The keys and features of a route's body that limits depend on."""

    # Keys of texts, lists of texts, conversations (also with media), or tokens.
    text_keys: tuple[str, ...] = ()
    accepts_token_ids: bool = False  # ``prompt`` can hold token ids that the engine continues
    can_truncate: bool = False  # by ``truncate_prompt_tokens``
    echoes_input: bool = False  # the response contains the whole input
    is_batchable: bool = False  # lines of batches can use the route
    accepts_items: bool = False  # ``input`` can hold items as in ``/v1/responses``


# Shape of a raw job, which has no route.
RAW_SHAPE = BodyShape(("messages", "prompt"), accepts_token_ids=True)
# Shape for routes without a body, and for bodies that need no limits.
EMPTY_SHAPE = BodyShape()


def check_size(payload: Any, max_megabytes: float = DEFAULT_MEGABYTES) -> None:
    """Check the size of an input; without recursion, since a deep input would exhaust the stack."""
    max_bytes = int(max_megabytes * MEGABYTE)
    value_count = id_count = size = 0
    pending: list[tuple[Any, Place, int]] = [([payload], None, 0)]
    while pending:
        container, place, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _limit_error(place, f"more than {MAX_DEPTH} levels deep")
        size += BYTES_PER_VALUE * len(container)
        is_list = type(container) is list
        # A boolean is no integer here.
        if is_list and type(container[0]) is int and set(map(type, container)) == {int}:
            id_count += len(container)
            if id_count > MAX_TOKEN_IDS:
                message = f"with its {len(container):,} numbers the input has more than"
                raise _limit_error(place, f"{message} {MAX_TOKEN_IDS:,} in lists of numbers")
        else:
            value_count += len(container)
            if value_count > MAX_VALUES:
                message = f"with its {len(container):,} items the input has more than"
                raise _limit_error(place, f"{message} {MAX_VALUES:,} values")
            size += 0 if is_list else sum(map(len, container))
            for key, value in enumerate(container) if is_list else container.items():
                kind = type(value)
                if kind is str:
                    # ``isascii`` is immediate: Python stores whether a string is ASCII.
                    size += len(value) if value.isascii() else len(value.encode(errors="replace"))
                elif value and (kind is dict or kind is list):
                    pending.append((value, (place, key) if depth else None, depth + 1))
        if size > max_bytes:
            message = f"the input has more than {max_bytes:,} bytes (MAX_INPUT_MB)"
            raise InputTooLarge(message, param=_dotted_path(place))


def _limit_error(place: Place, message: str) -> InvalidInput:
    name = _dotted_path(place)
    return InvalidInput(f"{name or 'the input'}: {message}", param=name)


def _dotted_path(place: Place) -> str | None:
    """Return a shortened path such as openai_input.messages.0.content; None for the whole input."""
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name)[:MAX_NAME_CHARACTERS])
    if len(names) > MAX_NAMES:
        names = [*names[: MAX_NAMES // 2], "...", *names[-MAX_NAMES // 2 :]]
    return ".".join(reversed(names)) or None


def check_request(
    values: Mapping[str, Any],
    shape: BodyShape,
    settings: Settings,
    holder: str = "",
    max_answer_bytes: float = RESULT_LIMIT_BYTES,
) -> None:
    """Check all of a request that can be checked without an engine.

    ``values`` are a body, or the keys and sampling parameters of a raw job in one object.
    ``holder`` is the name of the object with the sampling parameters; empty if it is the body.
    ``max_answer_bytes`` are infinite if the response comes in parts.
    """
    walker.refuse_denied_keys(values)
    # Called for its errors only: the media are fetched and checked later.
    walker.find_media(values, shape.text_keys)
    _check_operator_keys(values, settings)
    parameters.check_parameter_bounds(values, holder)
    work.check_requested_work(
        values,
        max_answer_bytes=max_answer_bytes,
        max_output_tokens=settings.max_output_tokens or math.inf,
        holder=f"{holder}." if holder else "",
    )


def _check_operator_keys(body: Mapping[str, Any], settings: Settings) -> None:
    """Refuse keys that need the operator's permission, or that lead into vLLM's own functions."""
    arguments = body.get(VLLM_XARGS)
    names = arguments.keys() - {*settings.allowed_xargs} if isinstance(arguments, dict) else ()
    for name in sorted(names):
        raise field_error(
            f"{VLLM_XARGS}.{name[:MAX_KEY_LENGTH]}",
            "it is not among those that ALLOWED_XARGS names",
        )
    kwargs = body.get(TEMPLATE_KWARGS)
    for name in sorted(RESERVED_TEMPLATE_NAMES & kwargs.keys() if isinstance(kwargs, dict) else ()):
        raise field_error(
            f"{TEMPLATE_KWARGS}.{name}", "not allowed in a request: vLLM sets it itself"
        )
    structured = body.get(STRUCTURED_OUTPUTS)
    for name in structured if isinstance(structured, dict) else ():
        if name.startswith("_"):
            raise field_error(f"{STRUCTURED_OUTPUTS}.{name[:MAX_KEY_LENGTH]}", "unknown key")
    if body.get("encoding_format") in BINARY_ENCODINGS:
        raise field_error("encoding_format", "float or base64, since answers are JSON")
