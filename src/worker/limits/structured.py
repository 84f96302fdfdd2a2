"""The sizes of structured outputs: what is refused before anything parses or compiles it.

Whether the engine can compile and follow one in a bearable time is tried out, not read
(``worker.engine.run.grammar``). Counting repetitions refused 27 of the 38 constraints in the tests
that are slow with a vocabulary of 131,000 tokens, and 39 that are not; the trial refuses the 38.
Sizes bound what comes before a trial or without one: the event loop reads each line of a grammar
(50 KB: 0.25 s), xgrammar ignores a foreign ``$ref``, and for other backends of vLLM's nothing is
tried (one of them aborts at a ``minItems`` of 2**31).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from worker.errors import InvalidInput
from worker.limits.parameters import BOUNDS
from worker.limits.shapes import TEXTS
from worker.limits.spelling import GUIDED, GUIDED_OBJECTS, PREFIX

# The keys of a body that hold constraints. Those that nobody knows are measured alike.
KEYS = GUIDED | GUIDED_OBJECTS | {"response_format", "text", "output_config", "tools"}
# Content: other bounds hold for it, or the whole body's.
CONTENT = (
    TEXTS
    | BOUNDS.keys()
    | set("chat_template_kwargs documents metadata model suffix user vllm_xargs".split())
)

# Characters of one constraint, by the name of its kind.
LONGEST = {"json": 64_000, "regex": 10_000, "grammar": 50_000}
# Of one constraint: objects and lists inside each other, and lines of its grammars.
DEEPEST = 64
MOST_LINES = 5_000  # vLLM looks at each when it tells one kind of grammar from another
CHARACTERS_OF_A_NUMBER = 4
NUMBERS = frozenset({int, float, bool, type(None)})
# By keyword, how many of what one constraint may have.
_BRANCHES = ("branches of allOf, anyOf, oneOf", 500)
COUNTS = {
    "properties": ("properties", 1_000),
    "enum": ("values", 1_000),
    "choice": ("choices", 1_000),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _BRANCHES),
}
MOST_TIMES = 1_000_000  # of minItems, maxLength and their like; Claude Code has tools with 524,288
TIMES = frozenset("minItems maxItems minLength maxLength minProperties maxProperties".split())

GRAMMARS = frozenset({"grammar", "definition"})
# A schema or a structural tag that may be written as text.
AS_TEXT = frozenset({"json", "structural_tag", "schema", "json_schema", "parameters"})
# What stands below is named by the caller: a name is no keyword.
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# Values that stand for themselves: what is in them is no keyword, as this one's name says.
VALUES = frozenset({"enum", "default", "const", "examples", "="})


def check_structured(holder: Mapping[str, Any], place: str = "") -> None:
    """Refuse what a request holds of structured outputs if it is too large.

    Args:
        holder: a body, or an object of parameters.
        place: the holder's name in messages; empty for a body.

    Raises:
        InvalidInput: naming the limit, the field and the size, never the value.
    """
    for key, value in holder.items():
        if key in CONTENT or isinstance(value, int | float):
            continue
        kind, where = key.removeprefix(PREFIX), f"{place}.{key}" if place else key
        # Tools are constraints of their own; so is each kind in vLLM's object for them.
        if key == "tools" and isinstance(value, list):
            for index, tool in enumerate(value):
                _Constraint(f"{where}.{index}", key).measure(tool, kind)
        elif key in GUIDED_OBJECTS and isinstance(value, dict):
            for name, part in value.items():
                _Constraint(f"{where}.{name}", key).measure(part, name.removeprefix(PREFIX))
        else:
            _Constraint(where, key).measure(value, kind)


class _Node(NamedTuple):
    value: Any
    keyword: str  # that it is the value of; empty for an item
    depth: int = 0


class _Constraint:
    """Counts what one constraint holds, and refuses it as soon as that is too much."""

    def __init__(self, place: str, param: str) -> None:
        self._place = place
        self._param = param
        self._longest = LONGEST["json"]
        self._counts: dict[str, int] = {}

    def measure(self, value: Any, kind: str) -> None:
        """Measure a value and all in it; without recursion, since a caller chooses the depth."""
        self._longest = LONGEST.get(kind, LONGEST["json"])
        waiting = [_Node(value, kind)]
        while waiting:
            node = waiting.pop()
            if node.depth > DEEPEST:
                raise self._too_deep()
            if count := isinstance(node.value, dict | list) and COUNTS.get(node.keyword):
                self._add(count[0], len(node.value), count[1])
            match node.value:
                case str():
                    waiting += self._text(node)
                case dict():
                    waiting += self._members(node)
                case list() if set(map(type, node.value)) <= NUMBERS:  # may be many
                    characters = CHARACTERS_OF_A_NUMBER * len(node.value)
                    self._add("characters", characters, self._longest)
                case list():
                    inner = "=" if node.keyword in VALUES else ""
                    waiting += (_Node(item, inner, node.depth + 1) for item in node.value)
                case _:
                    self._add("characters", CHARACTERS_OF_A_NUMBER, self._longest)

    def _text(self, node: _Node) -> Iterator[_Node]:
        text = node.value
        self._add("characters", len(text), self._longest)
        if node.keyword in GRAMMARS:
            self._add("lines of grammars", text.count("\n"), MOST_LINES)
        elif node.keyword in AS_TEXT and text.lstrip().startswith(("{", "[")):
            # Its characters are counted already.
            self._longest += len(text)
            yield node._replace(value=self._parsed(text), keyword="")

    def _members(self, node: _Node) -> Iterator[_Node]:
        for key, value in node.value.items():
            self._add("characters", len(key) + 4, self._longest)
            if node.keyword in VALUES | NAMED:
                yield _Node(value, "=" if node.keyword in VALUES else "", node.depth + 1)
                continue
            name = key.removeprefix(PREFIX)
            if name == "$ref" and isinstance(value, str) and value[:1] != "#":
                raise self._refusal("a $ref leads to a place in the same schema: it begins with #")
            if name in TIMES and isinstance(value, int) and value > MOST_TIMES:
                raise self._refusal(f"{name} is {value:.3g}; at most {MOST_TIMES:,}")
            yield _Node(value, name, node.depth + 1)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except RecursionError:
            raise self._too_deep() from None
        except ValueError:
            return None  # vLLM says so

    def _add(self, what: str, count: int, most: int) -> None:
        self._counts[what] = total = self._counts.get(what, 0) + count
        if total > most:
            raise self._refusal(f"at most {most:,} {what}; it has {total:,}")

    def _too_deep(self) -> InvalidInput:
        return self._refusal(f"nested too deeply: at most {DEEPEST} levels")

    def _refusal(self, message: str) -> InvalidInput:
        return InvalidInput(f"{self._place}: {message}", param=self._param)
