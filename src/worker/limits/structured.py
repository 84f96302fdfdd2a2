"""What of a structured output is too much, for all routes: found by its shape, whatever its key.

A schema, a regular expression or a grammar is compiled and followed inside the engine, where other
requests wait for it. So every one of them that a request holds is measured first, in time that is
linear in the request.

The trial of grammars (``worker.engine.run.grammar``) does not replace this, nor this the trial. Of
38 constraints in the tests that are slow with a vocabulary of 131,000 tokens, this finds 27, the
trial 35: a count inside counts shows what it costs only after more tokens than can be tried.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from worker.errors import InvalidInput
from worker.limits.parameters import BOUNDS
from worker.limits.repetitions import ENDLESS, Reading, Repeated, grammar, regex
from worker.limits.spelling import GUIDED, GUIDED_OBJECTS, PREFIX
from worker.settings import Settings

# Characters of one constraint, by the name of its kind, and of one regular expression anywhere.
LONGEST = {"json": 64_000, "regex": 10_000, "grammar": 50_000}
# Of one constraint: objects and lists inside each other, and how many there are of each keyword.
DEEPEST = 64
MOST_PROPERTIES = 1_000
MOST_VALUES = 1_000
MOST_PATTERNS = 200
MOST_BRANCHES = 500
MOST_RULES = 1_000
MOST_ALTERNATIVES = 5_000
MOST_LINES = 5_000  # vLLM looks at each when it tells one kind of grammar from another
CHARACTERS_OF_A_NUMBER = 4
NUMBERS = frozenset({int, float, bool, type(None)})
MOST_TIMES = 1_000_000  # of minItems, maxLength and their like; Claude Code has tools with 524,288

# The keys of a body that hold constraints. Those that nobody knows are measured alike.
KEYS = GUIDED | GUIDED_OBJECTS | {"response_format", "text", "output_config", "tools"}
# Content, not constraints: other bounds hold for it, or the whole body's.
CONTENT = BOUNDS.keys() | set(
    "chat_template_kwargs documents metadata model suffix user vllm_xargs".split()
)

# Keywords; some of these names had a prefix once.
REGEX = frozenset({"regex", "pattern", "whitespace_pattern"})
GRAMMAR = frozenset({"grammar", "definition"})
# A schema or a structural tag that may be written as text.
AS_TEXT = frozenset({"json", "structural_tag", "schema", "json_schema", "parameters"})
# What stands below is named by the caller: a name is no keyword.
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
VALUES = frozenset({"enum", "choice"})
# Values that no answer is held to.
SAID = frozenset({"default", "const", "examples", "description", "title"})
BRANCHES = frozenset({"allOf", "anyOf", "oneOf"})
COUNTED = frozenset("minItems maxItems minLength maxLength minProperties maxProperties".split())


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an operator may change.

    Args:
        repetitions: the most that counts inside each other may multiply to: (a{9}){9} is 81.
        nesting: how many counts may stand inside each other.
    """

    repetitions: int = 10_000
    nesting: int = 2

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.structured_max_repetitions, settings.structured_max_nesting)

    def check(
        self, holder: Mapping[str, Any], place: str = "", texts: Collection[str] = ()
    ) -> None:
        """Refuse what a request holds of structured outputs if it is too much.

        Args:
            holder: a body, or an object of parameters.
            place: the holder's name in messages; empty for a body.
            texts: keys of texts, which other checks bound.

        Raises:
            InvalidInput: naming the limit, the field and the size, never the value.
        """
        for key, value in holder.items():
            if key in CONTENT or key in texts or isinstance(value, int | float):
                continue
            # Tools are constraints of their own; so is each kind in vLLM's object for them.
            parts: Iterable[tuple[Any, Any]] = [("", value)]
            if key == "tools" and isinstance(value, list):
                parts = enumerate(value)
            if key in GUIDED_OBJECTS and isinstance(value, dict):
                parts = value.items()
            for name, part in parts:
                named = ".".join(str(step) for step in (place, key, name) if step != "")
                _Measure(self, named, key).take(
                    part, name if isinstance(name, str) and name else key
                )


class _Node(NamedTuple):
    value: Any
    key: str = ""  # the keyword that it is the value of; empty if there is none
    depth: int = 0
    said: bool = False
    around: Repeated = Repeated()  # by the parts of a structural tag that it stands in


class _Measure:
    """Counts what one constraint holds, and refuses it as soon as that is too much."""

    def __init__(self, bounds: Bounds, place: str, param: str) -> None:
        self._bounds = bounds
        self._place = place
        self._param = param
        self._longest = LONGEST["json"]
        self._counts: dict[str, int] = {}

    def take(self, value: Any, key: str) -> None:
        """Measure a value and all in it; without recursion, since a caller chooses the depth."""
        kind = key.removeprefix(PREFIX)
        self._longest = LONGEST.get(kind, LONGEST["json"])
        waiting = [_Node(value, kind)]
        while waiting:
            node = waiting.pop()
            if node.depth > DEEPEST:
                raise self._refusal(f"nested too deeply: at most {DEEPEST} levels")
            match node.value:
                case str():
                    waiting += self._text(node)
                case dict():
                    waiting += self._object(node)
                case list():
                    waiting += self._list(node)
                case _:
                    self._add("characters", CHARACTERS_OF_A_NUMBER, self._longest)

    def _text(self, node: _Node) -> Iterator[_Node]:
        text, key = node.value, node.key
        self._add("characters", len(text), self._longest)
        if node.said:
            return
        if key in REGEX:
            self._regex(text, node.around)
        elif key in GRAMMAR:
            self._grammar(text, node.around)
        elif key in AS_TEXT and text.lstrip().startswith(("{", "[")):
            # Its characters are counted already.
            self._longest += len(text)
            yield node._replace(value=self._parsed(text))

    def _object(self, node: _Node) -> Iterator[_Node]:
        named = node.key in NAMED and not node.said
        around = self._around(node)
        if node.key == "properties":
            self._add("properties", len(node.value), MOST_PROPERTIES)
        for key, value in node.value.items():
            self._add("characters", len(key) + 4, self._longest)
            if named:
                if node.key == "patternProperties":
                    self._regex(key, around)
                yield _Node(value, "", node.depth + 1)
                continue
            name = key.removeprefix(PREFIX)
            if name == "$ref" and isinstance(value, str) and value[:1] != "#" and not node.said:
                raise self._refusal("a $ref leads to a place in the same schema: it begins with #")
            if name in COUNTED and isinstance(value, int) and value > MOST_TIMES and not node.said:
                raise self._refusal(f"{name} is {value:.3g}; at most {MOST_TIMES:,}")
            yield _Node(value, name, node.depth + 1, node.said or name in SAID, around)

    def _list(self, node: _Node) -> Iterator[_Node]:
        said = node.said or node.key in VALUES
        if node.key in VALUES:
            name = {"enum": "values", "choice": "choices"}[node.key]
            self._add(name, len(node.value), MOST_VALUES)
        elif node.key in BRANCHES:
            self._add(f"branches of {', '.join(sorted(BRANCHES))}", len(node.value), MOST_BRANCHES)
        if set(map(type, node.value)) <= NUMBERS:
            self._add("characters", CHARACTERS_OF_A_NUMBER * len(node.value), self._longest)
            return
        for item in node.value:
            # The items of a list of schemas are schemas.
            yield _Node(item, "", node.depth + 1, said, node.around)

    def _around(self, node: _Node) -> Repeated:
        """Return how often what an object holds is repeated: in structural tags some are."""
        kind, most = node.value.get("type"), node.value.get("max")
        around = node.around
        if kind in ("plus", "star"):  # a type may be a list, for which no set can be asked
            around = Repeated(loops=1).within(around)
        elif kind == "repeat" and isinstance(most, int):
            around = Repeated(min(most, ENDLESS), 1).within(around)
        if around != node.around:
            self._judge(around, around.counts + around.loops)
        return around

    def _regex(self, pattern: str, around: Repeated) -> None:
        self._add("regular expressions", 1, MOST_PATTERNS)
        if len(pattern) > LONGEST["regex"]:
            raise self._too_many(
                "characters of a regular expression", len(pattern), LONGEST["regex"]
            )
        self._read(regex(pattern), around)

    def _grammar(self, text: str, around: Repeated) -> None:
        if len(text) > LONGEST["grammar"]:
            raise self._too_many("characters of a grammar", len(text), LONGEST["grammar"])
        self._add("lines of grammars", text.count("\n"), MOST_LINES)
        self._read(grammar(text), around)

    def _read(self, reading: Reading, around: Repeated) -> None:
        self._add("rules", reading.rules, MOST_RULES)
        self._add("alternatives", reading.alternatives, MOST_ALTERNATIVES)
        worst = reading.deepest(self._bounds.nesting).within(around)
        self._judge(worst, reading.depth + around.counts + around.loops)

    def _judge(self, worst: Repeated, depth: int) -> None:
        counted, times = self._bounds.nesting, self._bounds.repetitions
        if worst.counts > counted:
            self._too_deep("counted repetitions", worst.counts, counted)
        if depth > counted + 1:
            self._too_deep("repetitions", depth, counted + 1)
        if worst.times > times:
            what = "repetitions by counts inside each other"
            raise self._too_many(what, worst.times, times)

    def _too_deep(self, what: str, depth: int, most: int) -> None:
        raise self._refusal(f"at most {most} {what} inside each other; it has {depth} or more")

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except RecursionError:
            raise self._refusal(f"nested too deeply: at most {DEEPEST} levels") from None
        except ValueError:
            return None  # vLLM says so

    def _add(self, what: str, count: int, most: int) -> None:
        self._counts[what] = total = self._counts.get(what, 0) + count
        if total > most:
            raise self._too_many(what, total, most)

    def _too_many(self, what: str, count: int, most: int) -> InvalidInput:
        return self._refusal(f"at most {most:,} {what}; it has {count:,}")

    def _refusal(self, message: str) -> InvalidInput:
        return InvalidInput(f"{self._place}: {message}", param=self._param)
