"""An option of vLLM: which values it accepts, and how a variable becomes command line words."""

import argparse
import contextlib
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from worker.engine.options.declared import field_of, fields_of, kind_of, literals, plugged
from worker.engine.seam.locations import find
from worker.settings import history
from worker.settings.examples import example
from worker.settings.values import BOOLEANS, adapters, boolean, items, scalar, text

# Pairs in place of a JSON object: image=1,video=0.
_PAIRS = re.compile(r"\w+=[^,=]+(,\s*\w+=[^,=]+)*")

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}

ACCEPTED = {
    "boolean": BOOLEANS,
    "integer": "a whole number",
    "size": "a whole number, or one such as 16k (16000) or 16K (16384)",
    "number": "a number",
    "json": "a JSON object",
    "list": "a JSON list, or items with commas between",
    "text": "a text",
}
EXAMPLES = {"boolean": "1", "integer": "1", "size": "16k", "number": "1.0"}

# Exceptions that vLLM's conversions raise for a wrong value.
WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Options whose choices are not listed in their type, and where they are.
_LISTS = {"LOAD_FORMAT": "LoadFormats", "QUANTIZATION": "QUANTIZATION_METHODS"}
# Choices that a wrong value is taken for, at most.
_MEANT = 3
# Common short names of dtypes.
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Option:
    """An option of vLLM as an environment variable."""

    def __init__(self, action: argparse.Action, config: type | None) -> None:
        """Describe an option of vLLM's parser; ``config`` is the class that takes the value."""
        self.action = action
        self.name = action.dest.upper()
        self.flag = f"--{action.dest.replace('_', '-')}"
        self.config = config
        self.kind = kind_of(action)
        self._field = field_of(config, action.dest)
        # The limits of a number, by pydantic's names for them.
        self.bounds = bounds_of(self._field)

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted values; empty if they can't be listed."""
        of_parser = [str(choice) for choice in self.action.choices or () if choice is not None]
        if of_parser or self.kind != "text":
            return tuple(of_parser)
        if self.name in _LISTS:
            listed = find(_LISTS[self.name])
            return tuple(sorted(listed if isinstance(listed, list) else literals(listed)))
        return tuple(literals(self._field.annotation)) if self._field else ()

    @property
    def default(self) -> str:
        """vLLM's default as an operator would write it; blank if it has none."""
        value = self.action.default
        if value is argparse.SUPPRESS or value in (None, "", [], {}, set()):
            return ""
        value = getattr(value, "value", value)
        return text(value) if isinstance(value, bool | int | float | str | list) else ""

    @property
    def example(self) -> str | None:
        """An accepted value, as text; None if there is no good one."""
        if shown := example(self.name):
            return shown
        if self.choices:
            return self.default if self.default in self.choices else self.choices[0]
        if self.kind == "list":
            return "1,2" if self.action.type is int else "one,two"
        numeric = self.kind in ("size", "integer", "number")
        return (numeric and self.default) or EXAMPLES.get(self.kind)

    def advice(self, reason: str, value: str) -> str:
        """Return the message about a wrong value: the reason (``why``), and what to write."""
        accepted = in_words(self.kind, self.bounds)
        if self.name == "LORA_MODULES":
            accepted = 'name=path, or a JSON list of objects with "name" and "path"'
        elif self.choices:
            accepted = one_of(self.choices, value)
        return f"{reason}; {accepted}" if reason else accepted

    def words(self, value: str) -> Iterator[str]:
        """Yield the command line words that set the option.

        Raises:
            ValueError: the value has no such form.
        """
        if self.kind == "boolean":
            if boolean(value):
                yield self.flag
            elif isinstance(self.action, argparse.BooleanOptionalAction):
                yield self.flag.replace("--", "--no-", 1)
        elif self.kind == "list":
            yield self.flag
            yield from adapters(value) if self.name == "LORA_MODULES" else items(value)
        else:
            word = self._object(value) if self.kind == "json" else self._choice(value)
            # One word, since the value may begin with a hyphen.
            yield f"{self.flag}={word}"

    def check(self, value: str, converted: Any) -> None:
        """Check a value against what vLLM's configuration class declares.

        ``value`` is the text, or blank if it is unknown, and ``converted`` what the parser made of
        it.

        Raises:
            ValueError: with the reason; blank if what is accepted says all.
        """
        if converted is None or (value and value == self.default):
            return
        if self.kind == "json":
            self._check_object(converted)
        elif self.kind == "text" and self.choices and not self._known(str(converted)):
            raise ValueError(self._dropped(str(converted)))
        else:
            _validate(converted, Any, self._field)

    def _check_object(self, value: Any) -> None:
        """Check the keys and values of a JSON object against the class that vLLM makes of it.

        Raises:
            ValueError: it is no object, or has an unknown key or a wrong value.
        """
        default = self.action.default
        other = isinstance(value, str | list) and not isinstance(value, type(default))
        if isinstance(value, bool | int | float) or other:
            raise ValueError("no JSON object")
        classes = get_args(self._field.annotation) if self._field else ()
        known = next((fields for cls in classes if (fields := fields_of(cls))), None)
        if not isinstance(value, dict) or known is None:
            return
        if unknown := value.keys() - known.keys():
            raise ValueError(f"no such key: {', '.join(sorted(unknown))}")
        for key, item in value.items():
            try:
                # Raised for types of vLLM's own, which no operator can write.
                with contextlib.suppress(PydanticUserError):
                    _validate(item, known[key].annotation, known[key])
            except ValidationError as wrong:
                raise ValueError(f"{key}: {reasons(wrong)}") from None

    def _choice(self, value: str) -> str:
        """Return a choice as vLLM writes it, whatever its case: LOG_LEVEL=info is common."""
        return next((choice for choice in self.choices if choice.lower() == value.lower()), value)

    def _known(self, value: str) -> bool:
        # The operator's own class is written with dots; plugins may bring more names.
        own_class = "." in value or ":" in value
        return own_class or plugged() or bool({value, value.upper()} & {*self.choices})

    def _dropped(self, value: str) -> str:
        """Return since when vLLM doesn't have a choice; blank if it never had it."""
        removal = history.removal("choices", f"{self.name}={value}")
        if not removal:
            return ""
        reason = f"vLLM has had no {value} since {removal.since}"
        if self.name == "QUANTIZATION":
            reason += "; use a model that is quantized otherwise, which its own files tell vLLM"
        return reason

    def _object(self, value: str) -> str:
        """Return the JSON text of an object, which may be written as pairs.

        Raises:
            JSONDecodeError: broken JSON, which vLLM takes for text in some options.
        """
        if value.startswith(("{", "[")):
            json.loads(value)
        elif _PAIRS.fullmatch(value):
            pairs = (pair.strip().split("=") for pair in value.split(","))
            return json.dumps({key: scalar(item.strip()) for key, item in pairs})
        return value


def bounds_of(field: Any) -> dict[str, float]:
    """Return the limits that a field declares."""
    return {
        key: limit
        for constraint in (field.metadata if field else ())
        for key in _BOUNDS
        if (limit := getattr(constraint, key, None)) is not None
    }


def in_words(kind: str, bounds: Mapping[str, float]) -> str:
    """Say which values a kind of setting takes within these bounds."""
    return ", ".join([ACCEPTED[kind], *(f"{_BOUNDS[key]} {bounds[key]:g}" for key in bounds)])


def one_of(choices: Sequence[str], instead: str) -> str:
    """List the accepted values, after those that the wrong value was probably meant to be."""
    lower = {choice.lower(): choice for choice in choices}
    wanted = _SHORT.get(instead.lower(), instead.lower())
    near = [name for name in lower if wanted and name.startswith(wanted)][:_MEANT]
    # Similar digits don't make a number near.
    if not near and not instead.isdecimal():
        near = difflib.get_close_matches(wanted, lower, n=1)
    meant = f"did you mean {' or '.join(lower[name] for name in near)}? " if near else ""
    return f"{meant}One of {', '.join(choices)}" if meant else f"one of {', '.join(choices)}"


def why(error: BaseException) -> str:
    """Return why the parser, ``Option.words`` or ``Option.check`` refused a value.

    Blank if the message says no more than ``Option.advice`` adds.
    """
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ValidationError):
            # Bounds are part of what is accepted.
            return reasons(cause, "_than")
        if isinstance(cause, json.JSONDecodeError):
            return f"broken JSON: {cause}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    if not isinstance(error, ValueError):
        # Python's own message about code that didn't expect this value.
        return ""
    message = re.sub(r"^argument \S+: ", "", str(error))
    # A failed conversion: the message has a Python type, and repeats the value.
    return "" if message == BOOLEANS or re.match("invalid |Value ", message) else message


def reasons(invalid: ValidationError, but: str = "-") -> str:
    """Join a validation error's messages, without the values.

    ``but`` leaves out the kinds of errors that contain it.
    """
    messages = []
    for error in invalid.errors(include_input=False, include_url=False):
        if but not in error["type"]:
            place = ".".join(str(step) for step in error["loc"])
            message = str(error["msg"]).removeprefix("Value error, ")
            messages.append(f"{place}: {message}" if place else message)
    return "; ".join(messages)


def _validate(value: Any, annotation: Any, field: Any) -> None:
    """Check a value against a type, and against the bounds that a field declares.

    Raises:
        ValidationError: the value is wrong.
    """
    converted = TypeAdapter(annotation).validate_python(value)
    for bound in field.metadata if field and converted is not None else ():
        TypeAdapter(Annotated[Any, bound]).validate_python(converted)
