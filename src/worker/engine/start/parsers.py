"""Which of vLLM's parsers read a model's tool calls and reasoning: hints, and ``auto``.

Decided by the model's architecture and its chat template, which a fine-tune keeps under any name;
by its name where these are not known.
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

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.options.combinations import AUTO, MANAGERS, REASONING, TOOLS, text_of
from worker.engine.seam.locations import find

# Files that templates are in, besides the tokenizer's configuration.
_TEMPLATE = "chat_template.jinja"
_JSON_TEMPLATES = ("tokenizer_config.json", "chat_template.json")


@dataclass(frozen=True)
class Family:
    """A row of families.toml, which says what each field means."""

    title: str
    names: str
    architectures: Sequence[str]
    tools: str | None = None
    reasoning: str | None = None
    marks: Sequence[str] = ("",)


def _families() -> Iterator[Family]:
    known = tomllib.loads(Path(__file__).with_name("families.toml").read_bytes().decode())
    groups = known["architectures"]
    for title, row in known["families"].items():
        each = [groups.get(name, [name]) for name in row["architectures"]]
        yield Family(title, **{**row, "architectures": [*chain.from_iterable(each)]})


FAMILIES = [*_families()]


@dataclass(frozen=True)
class Chosen:
    """The parsers of a model.

    Attributes:
        family: the family that it is taken for; None for none.
        why: by what, or what is missing.
    """

    family: Family | None
    why: str

    def parser(self, setting: str) -> str | None:
        """Return the parser for a setting, if the installed vLLM has one."""
        if self.family is None:
            return None
        name = self.family.tools if setting == TOOLS else self.family.reasoning
        return name if name in find(MANAGERS[setting]).list_registered() else None

    def told(self, settings: Sequence[str]) -> str:
        """Return what ``auto`` stands for in these settings, and why."""
        parsers = ", ".join(f"{name}={self.parser(name) or 'none'}" for name in settings)
        return f"{parsers}: {self.family.title if self.family else 'no family'}, {self.why}"


def choose(name: str, architectures: Sequence[str], template: str | None) -> Chosen:
    """Choose a model's family by its name, its architectures and its chat template, if known."""
    alike = [one for one in FAMILIES if {*one.architectures} & {*architectures}]
    listed = ", ".join(architectures)
    if architectures and not alike:
        return Chosen(None, f"no family that is known has {listed}")
    if alike and template is not None:
        family = next((one for one in alike if any(mark in template for mark in one.marks)), None)
        if family is None:
            return Chosen(None, f"its chat template is none of those that are known for {listed}")
        return Chosen(family, f"by {listed} and its chat template")
    named = (one for one in alike or FAMILIES if re.search(one.names, name.lower()))
    if family := next(named, None):
        return Chosen(family, "by its name" + (f" and {listed}" if alike else ""))
    # A family that is only some of an architecture's models needs more to be told by.
    if len(alike) == 1 and alike[0].marks == ("",):
        return Chosen(alike[0], f"by {listed}")
    return Chosen(None, "neither its name nor its files say which family it is of")


def chosen(options: Namespace, architectures: Sequence[str] = ()) -> Chosen:
    """Choose the family of an engine's model, by its files as far as they are on the disk.

    ``architectures`` are the model's, where config.json is not on the disk.
    """
    folder = Path(options.model)
    config = _read_json(Path(options.hf_config_path or folder) / "config.json")
    if isinstance(overrides := options.hf_overrides, dict):
        config |= overrides
    found = config.get("architectures")
    known = [str(name) for name in found] if isinstance(found, list) else architectures
    return choose(options.served_model_name[-1], known, _template(options))


def with_parsers(arguments: EngineArguments, _: StartContext) -> EngineArguments:
    """Put parsers in the place of ``auto``: the model's, or none."""
    options = arguments.vllm
    if AUTO not in (options.tool_call_parser, options.reasoning_parser):
        return arguments
    found, changes = chosen(options), dict[str, Any]()
    if options.reasoning_parser == AUTO:
        changes["reasoning_parser"] = found.parser(REASONING) or ""
    if options.tool_call_parser == AUTO:
        parser = found.parser(TOOLS)
        asked = bool(parser) and options.enable_auto_tool_choice
        changes |= {"tool_call_parser": parser, "enable_auto_tool_choice": asked}
    return arguments.with_options(**changes)


def told(options: Namespace) -> Iterator[str]:
    """Yield what ``auto`` stands for, and which parsers to set where the operator set none."""
    found = chosen(options)
    given = {TOOLS: options.tool_call_parser, REASONING: options.reasoning_parser}
    if asked := [name for name, value in given.items() if value == AUTO]:
        yield found.told(asked)
    if not given[TOOLS] and (parser := found.parser(TOOLS)):
        yield f"for tool calls set ENABLE_AUTO_TOOL_CHOICE=1 and {TOOLS}={parser}"
    if not given[REASONING] and (parser := found.parser(REASONING)):
        yield f"to tell reasoning from the answer set {REASONING}={parser}"


def _template(options: Namespace) -> str | None:
    """Return the chat template that a model is served with; None if it is not on the disk."""
    if options.chat_template:
        with contextlib.suppress(OSError, UnicodeError):
            return text_of(options.chat_template)
    folder = Path(options.tokenizer or options.model)
    with contextlib.suppress(OSError, UnicodeError):
        return (folder / _TEMPLATE).read_text()
    for name in _JSON_TEMPLATES:
        if template := _read_json(folder / name).get("chat_template"):
            # Several templates are a list of objects: one of them is for tools.
            return template if isinstance(template, str) else json.dumps(template)
    return None


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    return {}
