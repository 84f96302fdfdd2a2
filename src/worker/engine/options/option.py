"""One option of vLLM's: what it accepts, and how a variable's text becomes command line words."""

import argparse
import contextlib
import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from worker.engine.locations import find
from worker.engine.options.declared import field_of, fields_of, kind_of, literals, plugged
from worker.settings import history
from worker.settings.examples import example
from worker.settings.values import BOOLEANS, adapters, boolean, items, scalar, text

# Pairs as operators write them for an option that takes a JSON object: image=1,video=0.
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

# Options whose choices are listed elsewhere than in their type.
_LISTS = {"LOAD_FORMAT": "LoadFormats", "QUANTIZATION": "QUANTIZATION_METHODS"}


# What types are called elsewhere.
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Option:
    """One option of vLLM's, as an environment variable."""

    def __init__(self, action: argparse.Action, config: type | None) -> None:
        """Wrap an option of vLLM's parser.

        Args:
            action: the parser's.
            config: the class of vLLM's configuration that its value ends up in, if one does.
        """
        self.action = action
        self.name = action.dest.upper()
        self.flag = f"--{action.dest.replace('_', '-')}"
        self.config = config
        self.kind = kind_of(action)
        self._field = field_of(config, action.dest)

    @property
    def choices(self) -> tuple[str, ...]:
        """All values that are accepted; none where they can't be listed."""
        of_parser = [str(choice) for choice in self.action.choices or () if choice is not None]
        if of_parser or self.kind != "text":
            return tuple(of_parser)
        if self.name in _LISTS:
            listed = find(_LISTS[self.name])
            return tuple(sorted(listed if isinstance(listed, list) else literals(listed)))
        return tuple(literals(self._field.annotation)) if self._field else ()

    @property
    def default(self) -> str:
        """The default of vLLM's as an operator would write it; blank where it has none."""
        value = self.action.default
        if value is argparse.SUPPRESS or value in (None, "", [], {}, set()):
            return ""
        value = getattr(value, "value", value)
        return text(value) if isinstance(value, bool | int | float | str | list) else ""

    def accepted(self, instead: str = "") -> str:
        """Say what is accepted instead of a value."""
        if self.name == "LORA_MODULES":
            return 'name=path, or a JSON list of objects with "name" and "path"'
        if self.choices:
            return one_of(self.choices, instead)
        bounds = [
            f"{words} {limit:g}"
            for constraint in (self._field.metadata if self._field else ())
            for key, words in _BOUNDS.items()
            if (limit := getattr(constraint, key, None)) is not None
        ]
        return ", ".join([ACCEPTED[self.kind], *bounds])

    @property
    def example(self) -> str | None:
        """A value that is accepted, as it may stand behind the name."""
        if shown := example(self.name):
            return shown
        if self.choices:
            return self.default if self.default in self.choices else self.choices[0]
        if self.kind == "list":
            return "1,2" if self.action.type is int else "one,two"
        numeric = self.kind in ("size", "integer", "number")
        return (numeric and self.default) or EXAMPLES.get(self.kind)

    def words(self, value: str) -> Iterator[str]:
        """Spell the option as command line words; the ``=`` protects a value's leading dash.

        Raises:
            ValueError: the value is none that the option can have.
        """
        if self.kind == "boolean":
            yield from self._switch(boolean(value))
        elif self.kind == "list":
            yield self.flag
            yield from adapters(value) if self.name == "LORA_MODULES" else items(value)
        else:
            spelt = self._object(value) if self.kind == "json" else self._spelt(value)
            yield f"{self.flag}={spelt}"

    def check(self, value: str, converted: Any) -> None:
        """Hold a value that the parser has converted to what vLLM's configuration declares.

        Raises:
            ValueError: with what is wrong, if there is more to say than what is accepted.
        """
        if converted is None or (value and value == self.default):
            return
        if self.kind == "json":
            self._check_object(converted)
        elif self.kind == "text" and self.choices and not self._known(str(converted)):
            raise ValueError(self._gone(str(converted)))
        else:
            _hold(converted, Any, self._field)

    def _check_object(self, value: Any) -> None:
        """Hold an object's keys, and what stands behind them, to the class that vLLM makes of it.

        Raises:
            ValueError: it is no object, or none that would do.
        """
        default = self.action.default
        other = isinstance(value, str | list) and not isinstance(value, type(default))
        if isinstance(value, bool | int | float) or other:
            raise ValueError("no JSON object")
        classes = get_args(self._field.annotation) if self._field else ()
        known = next((fields_of(each) for each in classes if fields_of(each)), None)
        if not isinstance(value, dict) or known is None:
            return
        if unknown := value.keys() - known.keys():
            raise ValueError(f"no such key: {', '.join(sorted(unknown))}")
        for key, each in value.items():
            try:
                # Types of vLLM's own, which no operator writes, can't be checked so.
                with contextlib.suppress(PydanticUserError):
                    _hold(each, known[key].annotation, known[key])
            except ValidationError as wrong:
                raise ValueError(f"{key}: {reasons(wrong)}") from None

    def _spelt(self, value: str) -> str:
        """Spell a choice as vLLM does: LOG_LEVEL=info is often set, by whoever."""
        return next((each for each in self.choices if each.lower() == value.lower()), value)

    def _known(self, value: str) -> bool:
        # A class of the operator's own is written with dots; plugins may bring more names.
        written = "." in value or ":" in value
        return written or plugged() or bool({value, value.upper()} & {*self.choices})

    def _gone(self, value: str) -> str:
        removal = history.removal("choices", f"{self.name}={value}")
        if not removal:
            return ""
        told = f"vLLM has had no {value} since {removal.since}"
        if self.name == "QUANTIZATION":
            told += "; use a model that is quantized otherwise, which its own files tell vLLM"
        return told

    def _switch(self, wanted: bool) -> Iterator[str]:
        if wanted:
            yield self.flag
        elif isinstance(self.action, argparse.BooleanOptionalAction):
            yield self.flag.replace("--", "--no-", 1)

    def _object(self, value: str) -> str:
        """Make JSON of pairs; tell broken JSON, which vLLM takes for text in some options."""
        if value.startswith(("{", "[")):
            json.loads(value)
        elif _PAIRS.fullmatch(value):
            pairs = (pair.strip().split("=") for pair in value.split(","))
            return json.dumps({key: scalar(each.strip()) for key, each in pairs})
        return value


def one_of(choices: Sequence[str], instead: str) -> str:
    """List what is accepted instead of a value; what was probably meant comes first."""
    lower = {each.lower(): each for each in choices}
    wanted = _SHORT.get(instead.lower(), instead.lower())
    # Of numbers the nearest is not the one that looks alike.
    near = () if instead.isdecimal() else difflib.get_close_matches(wanted, lower, n=1)
    meant = f"did you mean {lower[near[0]]}? " if near else ""
    return f"{meant}One of {', '.join(choices)}" if meant else f"one of {', '.join(choices)}"


def why(error: BaseException) -> str:
    """Say what is wrong with a value, from what was raised on the way through the parser.

    Nothing, where all there is to say is what would be accepted.
    """
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ValidationError):
            # What a value is to be above or below is part of what is accepted.
            return reasons(cause, "_than")
        if isinstance(cause, json.JSONDecodeError):
            return f"broken JSON: {cause}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    if not isinstance(error, ValueError):
        # Python's own words for a value that nobody was prepared for.
        return ""
    message = re.sub(r"^argument \S+: ", "", str(error))
    # Of a conversion that failed: a type of Python's, and the value once more.
    return "" if message == BOOLEANS or re.match("invalid |Value ", message) else message


def reasons(invalid: ValidationError, but: str = "-") -> str:
    """Join what is wrong, but for some kinds of it; no value is repeated."""
    every = invalid.errors(include_input=False, include_url=False)
    return "; ".join(_told(each) for each in every if but not in each["type"])


def _told(error: Any) -> str:
    place = ".".join(str(step) for step in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _hold(value: Any, annotation: Any, field: Any) -> None:
    """Hold a value to a type, and to the bounds that a field declares.

    Raises:
        ValidationError: it is another, or beyond them.
    """
    held = TypeAdapter(annotation).validate_python(value)
    for bound in field.metadata if field and held is not None else ():
        TypeAdapter(Annotated[Any, bound]).validate_python(held)
