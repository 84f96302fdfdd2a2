"""An option of vLLM: its accepted values, and its conversion into command line words."""

import argparse
import contextlib
import enum
import functools
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from worker.engine.seam.locations import import_from_vllm
from worker.settings import history
from worker.settings.examples import example_value
from worker.settings.values import (
    ACCEPTED_BOOLEANS,
    format_value,
    parse_boolean,
    parse_list,
    parse_scalar,
    split_adapter_list,
)
from worker.validation import find_similar_names

# Pairs that operators may write instead of a JSON object, such as image=1,video=0.
_PAIRS_PATTERN = re.compile(r"\w+=[^,=]+(,\s*\w+=[^,=]+)*")

_BOUND_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}

ACCEPTED_VALUES = {
    "boolean": ACCEPTED_BOOLEANS,
    "integer": "a whole number",
    "size": "a whole number, or one such as 16k (16000) or 16K (16384)",
    "number": "a number",
    "json": "a JSON object",
    "list": "a JSON list, or items with commas between",
    "text": "a text",
}
EXAMPLES = {"boolean": "1", "integer": "1", "size": "16k", "number": "1.0"}

# Exceptions that vLLM's conversions raise for a wrong value.
CONVERSION_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Options whose type doesn't list their choices, with vLLM's names of the lists. The type of
# KV_CACHE_DTYPE lists them before vLLM 0.33.
_CHOICE_LISTS = {
    "KV_CACHE_DTYPE": "CacheDType",
    "LOAD_FORMAT": "LoadFormats",
    "QUANTIZATION": "QUANTIZATION_METHODS",
}
# Maximum number of choices that are suggested for a wrong value.
_MAX_SUGGESTIONS = 3
# Common short names of dtypes.
_DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Option:
    """An option of vLLM that operators set with an environment variable."""

    def __init__(self, action: argparse.Action, config: type | None) -> None:
        """Read an option of vLLM's parser; ``config`` is the class that may have a field for it."""
        self.action = action
        self.name = action.dest.upper()
        self.flag = f"--{action.dest.replace('_', '-')}"
        self.config = config

    # A start needs these of the few options that are set, so they are not read for all others.
    @functools.cached_property
    def kind(self) -> str:
        """The kind of its values, a key of ``ACCEPTED_VALUES``."""
        return detect_value_kind(self.action)

    @functools.cached_property
    def bounds(self) -> dict[str, float]:
        """Limits of a number, by pydantic's names for them."""
        return read_bounds(self._field)

    @functools.cached_property
    def _field(self) -> Any:
        return find_config_field(self.config, self.action.dest)

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted values; empty if they can't be listed."""
        parser_choices = [str(choice) for choice in self.action.choices or () if choice is not None]
        if parser_choices or self.kind != "text":
            return tuple(parser_choices)
        if self.name in _CHOICE_LISTS:
            listed = import_from_vllm(_CHOICE_LISTS[self.name])
            return tuple(
                sorted(listed if isinstance(listed, list) else literal_or_enum_values(listed))
            )
        return tuple(literal_or_enum_values(self._field.annotation)) if self._field else ()

    @property
    def default(self) -> str:
        """The default as an operator would write it; blank if it is empty or can't be written."""
        value = self.action.default
        if value is argparse.SUPPRESS or value in (None, "", [], {}, set()):
            return ""
        value = getattr(value, "value", value)
        return format_value(value) if isinstance(value, bool | int | float | str | list) else ""

    @property
    def example(self) -> str | None:
        """An accepted value as a string; None if there is no good example."""
        if specific_example := example_value(self.name):
            return specific_example
        if self.choices:
            return self.default if self.default in self.choices else self.choices[0]
        if self.kind == "list":
            return "1,2" if self.action.type is int else "one,two"
        is_numeric = self.kind in ("size", "integer", "number")
        return (is_numeric and self.default) or EXAMPLES.get(self.kind)

    def build_advice(self, reason: str, value: str) -> str:
        """Return the message about a wrong value: the reason, if any, and the accepted values."""
        accepted = describe_value_kind(self.kind, self.bounds)
        if self.name == "LORA_MODULES":
            accepted = 'name=path, or a JSON list of objects with "name" and "path"'
        elif self.choices:
            accepted = describe_choices(self.choices, value)
        return f"{reason}; {accepted}" if reason else accepted

    def command_line_words(self, value: str) -> Iterator[str]:
        """Yield the words that set the option; none for a false boolean without a negated flag."""
        if self.kind == "boolean":
            if parse_boolean(value):
                yield self.flag
            elif isinstance(self.action, argparse.BooleanOptionalAction):
                yield self.flag.replace("--", "--no-", 1)
        elif self.kind == "list":
            yield self.flag
            yield from (
                split_adapter_list(value) if self.name == "LORA_MODULES" else parse_list(value)
            )
        else:
            if self.kind != "json":
                # The case of a choice doesn't matter.
                same = (choice for choice in self.choices if choice.lower() == value.lower())
                value = next(same, value)
            elif value.startswith(("{", "[")):
                # For some options, vLLM would accept broken JSON as a string.
                json.loads(value)
            elif _PAIRS_PATTERN.fullmatch(value):
                pairs = (pair.strip().split("=") for pair in value.split(","))
                value = json.dumps({key: parse_scalar(item.strip()) for key, item in pairs})
            # A single word, since the value may begin with a hyphen.
            yield f"{self.flag}={value}"

    def check_value(self, value: str, converted: Any) -> None:
        """Check a value against choices, JSON keys or bounds; the default is always accepted.

        ``value`` is blank if it is unknown; ``converted`` is what vLLM's parser made of it. The
        message of the ``ValueError`` is blank if the accepted values explain it.
        """
        if converted is None or (value and value == self.default):
            return
        if self.kind == "json":
            self._check_json_object(converted)
            return
        if self.kind == "text" and self.choices:
            text = str(converted)
            # An operator's own class has a dot or colon in its name. Plugins may register names.
            is_other = "." in text or ":" in text or has_third_party_plugins()
            if not is_other and not {text, text.upper()} & {*self.choices}:
                raise ValueError(self._explain_removed_choice(text))
        _validate_type_and_bounds(converted, Any, self._field)

    def _check_json_object(self, value: Any) -> None:
        """Validate the keys and values of a JSON object against vLLM's class for it, if any."""
        default = self.action.default
        is_other_type = isinstance(value, str | list) and not isinstance(value, type(default))
        if isinstance(value, bool | int | float) or is_other_type:
            raise ValueError("not a JSON object")
        classes = get_args(self._field.annotation) if self._field else ()
        known_fields = next((fields for cls in classes if (fields := pydantic_fields(cls))), None)
        if not isinstance(value, dict) or known_fields is None:
            return
        if unknown := value.keys() - known_fields.keys():
            raise ValueError(f"no such key: {', '.join(sorted(unknown))}")
        for key, item in value.items():
            try:
                # Pydantic raises this for types that it can't validate and operators can't write.
                with contextlib.suppress(PydanticUserError):
                    _validate_type_and_bounds(item, known_fields[key].annotation, known_fields[key])
            except ValidationError as error:
                raise ValueError(f"{key}: {join_validation_messages(error)}") from None

    def _explain_removed_choice(self, value: str) -> str:
        """Return since when vLLM lacks a choice; blank if vLLM never had it."""
        removal = history.find_removal("choices", f"{self.name}={value}")
        if not removal:
            return ""
        reason = f"vLLM has had no {value} since {removal.first_series_without}"
        if self.name == "QUANTIZATION":
            reason += "; use a model with another quantization, which vLLM reads from its files"
        return reason


def read_bounds(field: Any) -> dict[str, float]:
    """Return the limits that a field declares, by pydantic's names, such as ``ge``."""
    return {
        key: limit
        for constraint in (field.metadata if field else ())
        for key in _BOUND_WORDS
        if (limit := getattr(constraint, key, None)) is not None
    }


def describe_value_kind(kind: str, bounds: Mapping[str, float]) -> str:
    return ", ".join(
        [ACCEPTED_VALUES[kind], *(f"{_BOUND_WORDS[key]} {bounds[key]:g}" for key in bounds)]
    )


def describe_choices(choices: Sequence[str], wrong_value: str) -> str:
    lower = {choice.lower(): choice for choice in choices}
    prefix = _DTYPE_ALIASES.get(wrong_value.lower(), wrong_value.lower())
    matches = [name for name in lower if prefix and name.startswith(prefix)][:_MAX_SUGGESTIONS]
    # A number with similar digits is not a useful suggestion.
    if not matches and not wrong_value.isdecimal():
        matches = find_similar_names(prefix, lower)
    hint = f"did you mean {' or '.join(lower[name] for name in matches)}? " if matches else ""
    return f"{hint}One of {', '.join(choices)}" if hint else f"one of {', '.join(choices)}"


def refusal_reason(error: BaseException) -> str:
    """Return why a value was refused; blank for ``build_advice``'s reasons or Python's errors."""
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ValidationError):
            # Omit messages about bounds, which the accepted values contain.
            return join_validation_messages(cause, "_than")
        if isinstance(cause, json.JSONDecodeError):
            return f"broken JSON: {cause}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    if not isinstance(error, ValueError):
        # Python's own message is about vLLM's code, which didn't expect this value.
        return ""
    message = re.sub(r"^argument \S+: ", "", str(error))
    # Omit the message of a failed conversion: it contains a Python type and repeats the value.
    return "" if message == ACCEPTED_BOOLEANS or re.match("invalid |Value ", message) else message


def join_validation_messages(error: ValidationError, ignored_type: str = "-") -> str:
    """Join messages, without the values, except of error types that contain ``ignored_type``."""
    messages = []
    for detail in error.errors(include_input=False, include_url=False):
        if ignored_type not in detail["type"]:
            location = ".".join(str(step) for step in detail["loc"])
            message = str(detail["msg"]).removeprefix("Value error, ")
            messages.append(f"{location}: {message}" if location else message)
    return "; ".join(messages)


def _validate_type_and_bounds(value: Any, annotation: Any, field: Any) -> None:
    converted = TypeAdapter(annotation).validate_python(value)
    for bound in field.metadata if field and converted is not None else ():
        TypeAdapter(Annotated[Any, bound]).validate_python(converted)


@functools.cache
def has_third_party_plugins() -> bool:
    """Return whether a plugin is installed that may add choices to vLLM's options."""
    entry_points = importlib.metadata.entry_points(group="vllm.general_plugins")
    return any(point.dist and not point.dist.name.startswith("vllm") for point in entry_points)


def detect_value_kind(action: argparse.Action) -> str:
    """Return the kind of an option's values, which is a key of ``option.ACCEPTED_VALUES``.

    The option's conversion may be any function, so it is called with sample values.
    """
    if action.nargs == 0:
        return "boolean"
    if action.nargs == "+":
        return "list"
    if action.choices:
        return "text"
    convert: Any = action.type or str
    probes = (("{}", "json", object), ("1k", "size", int), ("0.5", "number", float))
    for probe, kind, cls in (*probes, ("1", "integer", int)):
        with contextlib.suppress(ValueError, TypeError, argparse.ArgumentTypeError):
            converted = convert(probe)
            if isinstance(converted, cls) and not isinstance(converted, str | list | None):
                return kind
    return "text"


def literal_or_enum_values(annotation: Any) -> Iterator[str]:
    """Yield the values of a Literal or an Enum as strings, also if it is a member of a union."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        for member in annotation:
            # Operators write the name of a member whose value is None or the path of a class.
            value = str(member.value)
            is_writable = member.value is not None and re.fullmatch(r"\w+", value)
            spelling = value if is_writable else member.name
            yield spelling
            if spelling.lower() != member.name.lower():
                yield member.name
    else:
        for part in get_args(annotation):
            yield from literal_or_enum_values(part)


def pydantic_fields(config: Any) -> dict[str, Any]:
    return getattr(config, "__pydantic_fields__", {})


def find_config_field(config: Any, dest: str) -> Any:
    """Return the field of a configuration class, or of a class in it, that an option sets, if any.

    The field may lack the class's name: ``attention_backend`` sets ``AttentionConfig.backend``.
    """
    own_fields = pydantic_fields(config)
    prefix = f"{getattr(config, '__name__', '').removesuffix('Config').lower()}_"
    nested_fields = [pydantic_fields(field.annotation) for field in own_fields.values()]
    for fields in (own_fields, *nested_fields):
        for name in (dest, dest.removeprefix(prefix)):
            if name in fields:
                return fields[name]
    return None
