"""Selects vLLM's parsers for a model's tool calls and reasoning, for ``auto`` and for log hints.

The choice depends on the model's architecture and chat template, which a fine-tune has in common
with its base model, and also on the model's name if one of them is unknown.
"""

import contextlib
import json
import re
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.model_config import architectures_in, read_config
from worker.engine.options.combinations import (
    AUTO,
    PARSER_REGISTRIES,
    REASONING_PARSER,
    TOOL_PARSER,
    chat_template_text,
)
from worker.engine.seam.locations import import_from_vllm
from worker.engine.start import Start
from worker.store import disk
from worker.store.files import parse_json_object

# Files that contain chat templates.
_TEMPLATE_FILE = "chat_template.jinja"
_JSON_TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.json")


@dataclass(frozen=True)
class ModelFamily:
    """Models with the same parsers: a row of families.toml, which documents the fields."""

    title: str
    names: str
    architectures: Sequence[str]
    tools: str | None = None
    reasoning: str | None = None
    marks: Sequence[str] = ("",)


def _read_families() -> Iterator[ModelFamily]:
    table = tomllib.loads(Path(__file__).with_name("families.toml").read_bytes().decode())
    groups = table["architectures"]
    for title, row in table["families"].items():
        architectures = [groups.get(name, [name]) for name in row["architectures"]]
        yield ModelFamily(title, **{**row, "architectures": [*chain.from_iterable(architectures)]})


FAMILIES = [*_read_families()]


@dataclass(frozen=True)
class RecognizedFamily:
    """The family that was recognized for a model, and how; None, and why not, if it is unknown."""

    family: ModelFamily | None
    reason: str

    def parser_name(self, kind: str) -> str | None:
        """Return the family's parser of this kind; None if the family has none or vLLM lacks it."""
        if self.family is None:
            return None
        name = self.family.tools if kind == TOOL_PARSER else self.family.reasoning
        return name if name in import_from_vllm(PARSER_REGISTRIES[kind]).list_registered() else None

    def describe_parsers(self, settings: Sequence[str]) -> str:
        parsers = ", ".join(f"{name}={self.parser_name(name) or 'none'}" for name in settings)
        return f"{parsers}: {self.family.title if self.family else 'no family'}, {self.reason}"


def choose_family(
    name: str, architectures: Sequence[str], template: str | None
) -> RecognizedFamily:
    """Select a model's family by architectures and chat template, or its name if one is unknown."""
    candidates = [family for family in FAMILIES if {*family.architectures} & {*architectures}]
    listing = ", ".join(architectures)
    if architectures and not candidates:
        return RecognizedFamily(None, f"no known family has {listing}")
    if candidates and template is not None:
        family = next(
            (family for family in candidates if any(mark in template for mark in family.marks)),
            None,
        )
        if family is None:
            return RecognizedFamily(None, f"its chat template is not a known one for {listing}")
        return RecognizedFamily(family, f"by {listing} and its chat template")
    matches = (family for family in candidates or FAMILIES if re.search(family.names, name.lower()))
    if family := next(matches, None):
        return RecognizedFamily(family, "by its name" + (f" and {listing}" if candidates else ""))
    # An architecture alone doesn't identify a family that covers only some of its models.
    if len(candidates) == 1 and candidates[0].marks == ("",):
        return RecognizedFamily(candidates[0], f"by {listing}")
    return RecognizedFamily(None, "neither its name nor its files identify its family")


def choose_family_by_files(
    options: Namespace, architectures: Sequence[str] = ()
) -> RecognizedFamily:
    """Select the parsers of an engine's model by its files on the disk.

    ``architectures`` are used if config.json is not on the disk or lists none.
    """
    config = {}
    with contextlib.suppress(OSError):
        config = read_config(options)
    if isinstance(config.get("architectures"), list):
        architectures = architectures_in(config)
    name = options.served_model_name[-1]
    return choose_family(name, architectures, _read_chat_template(options))


def with_parsers(arguments: EngineArguments, _: Start) -> EngineArguments:
    """Replace ``auto`` by the model's parsers; without a tool parser, disable auto tool choice."""
    options = arguments.vllm_args
    if AUTO not in (options.tool_call_parser, options.reasoning_parser):
        return arguments
    choice, changes = choose_family_by_files(options), dict[str, Any]()
    if options.reasoning_parser == AUTO:
        changes["reasoning_parser"] = choice.parser_name(REASONING_PARSER) or ""
    if options.tool_call_parser == AUTO:
        parser = choice.parser_name(TOOL_PARSER)
        enables_tools = bool(parser) and options.enable_auto_tool_choice
        changes |= {"tool_call_parser": parser, "enable_auto_tool_choice": enables_tools}
    return arguments.with_options(**changes)


def parser_hints(options: Namespace) -> Iterator[str]:
    """Yield log lines on the parsers that ``auto`` selects, and hints for those that are unset."""
    choice = choose_family_by_files(options)
    configured = {TOOL_PARSER: options.tool_call_parser, REASONING_PARSER: options.reasoning_parser}
    if automatic := [name for name, value in configured.items() if value == AUTO]:
        yield choice.describe_parsers(automatic)
    if not configured[TOOL_PARSER] and (parser := choice.parser_name(TOOL_PARSER)):
        yield f"for tool calls, set ENABLE_AUTO_TOOL_CHOICE=1 and {TOOL_PARSER}={parser}"
    if not configured[REASONING_PARSER] and (parser := choice.parser_name(REASONING_PARSER)):
        yield f"to separate reasoning from the answer, set {REASONING_PARSER}={parser}"


def _read_chat_template(options: Namespace) -> str | None:
    """Return the chat template that a model is served with; None if it is not on the disk."""
    if options.chat_template:
        with contextlib.suppress(OSError, UnicodeError):
            return chat_template_text(options.chat_template)
    folder = Path(options.tokenizer or options.model)
    with contextlib.suppress(OSError, UnicodeError):
        return (folder / _TEMPLATE_FILE).read_text()
    for name in _JSON_TEMPLATE_FILES:
        with contextlib.suppress(OSError):
            content = parse_json_object(disk.read_text_or_empty(folder / name))
            if template := content.get("chat_template"):
                # A model with several templates has a list of objects, one of them for tool calls.
                return template if isinstance(template, str) else json.dumps(template)
    return None
