"""Limits for structured outputs on all routes; their keywords are recognized under any key.

The engine compiles schemas, regular expressions and grammars, and follows them for each token,
while other requests wait. So the size of all constraints in a request is checked first, in time
that is linear in the request.

The trial of grammars (``worker.engine.run.grammar``) and these limits don't replace each other. Of
38 constraints in the tests that are slow with a vocabulary of 131,000 tokens, these limits find 27
and the trial finds 35: nested counts become slow only after more tokens than the trial can process.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from worker.errors import InvalidInput
from worker.limits.parameters import BOUNDS
from worker.limits.repetitions import (
    MAX_COUNT,
    NestedRepetition,
    PatternStructure,
    parse_grammar,
    parse_regex,
)
from worker.limits.spelling import GUIDED_KEYS, GUIDED_OBJECTS, GUIDED_PREFIX
from worker.settings import Settings

# Maximum characters of one constraint, by its kind. The limit for ``regex`` also applies to every
# regular expression inside another constraint.
MAX_CHARACTERS = {"json": 64_000, "regex": 10_000, "grammar": 50_000}
# Limits for one constraint: the depth of nested objects and lists, and the total numbers of its
# properties, literal values, regular expressions and so on.
MAX_DEPTH = 64
MAX_PROPERTIES = 1_000
MAX_VALUES = 1_000
MAX_PATTERNS = 200
MAX_BRANCHES = 500
MAX_RULES = 1_000
MAX_ALTERNATIVES = 5_000
MAX_LINES = 5_000  # vLLM examines each line to distinguish kinds of grammars
CHARACTERS_PER_NUMBER = 4
NUMBER_TYPES = frozenset({int, float, bool, type(None)})
MAX_SIZE = 1_000_000  # for minItems, maxLength and the like; tools of Claude Code have 524,288

# Keys of a body that hold constraints. Unknown keys are checked in the same way.
CONSTRAINT_KEYS = (
    GUIDED_KEYS | GUIDED_OBJECTS | {"response_format", "text", "output_config", "tools"}
)
# Keys whose values hold no constraints. Other limits apply to them.
CONTENT_KEYS = BOUNDS.keys() | set(
    "chat_template_kwargs documents metadata model suffix user vllm_xargs".split()
)

# Keywords of regular expressions. Some keywords may have the former prefix ``guided_``.
REGEX_KEYWORDS = frozenset({"regex", "pattern", "whitespace_pattern"})
GRAMMAR_KEYWORDS = frozenset({"grammar", "definition"})
# Keywords of a schema or a structural tag that can be JSON inside a string.
JSON_TEXT_KEYWORDS = frozenset({"json", "structural_tag", "schema", "json_schema", "parameters"})
# Keywords of objects whose keys are names that the caller chooses, not keywords.
NAME_KEYWORDS = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
VALUE_LIST_KEYWORDS = frozenset({"enum", "choice"})
# Keywords whose values are literals, not schemas.
LITERAL_KEYWORDS = frozenset({"default", "const", "examples", "description", "title"})
BRANCH_KEYWORDS = frozenset({"allOf", "anyOf", "oneOf"})
SIZE_KEYWORDS = frozenset(
    "minItems maxItems minLength maxLength minProperties maxProperties".split()
)


@dataclass(frozen=True, slots=True)
class StructuredOutputLimits:
    """Limits for structured outputs that an operator can change.

    Args:
        max_repetitions: Maximum product of nested counts, such as 81 for (a{9}){9}.
        max_nesting: Maximum nesting of counts.
    """

    max_repetitions: int = 10_000
    max_nesting: int = 2

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(settings.structured_max_repetitions, settings.structured_max_nesting)

    def check_constraints(
        self, values: Mapping[str, Any], place: str = "", text_keys: Collection[str] = ()
    ) -> None:
        """Check all structured outputs in a request.

        Args:
            values: A body, or an object of parameters.
            place: Name of the object in messages; empty for a body.
            text_keys: Keys of texts, which have limits of their own.

        Raises:
            InvalidInput: If a limit is exceeded. The error names the limit, the field and the size.
        """
        for key, value in values.items():
            if key in CONTENT_KEYS or key in text_keys or isinstance(value, int | float):
                continue
            # Each tool is a constraint of its own, and so is each kind in an object of kinds.
            parts: Iterable[tuple[Any, Any]] = [("", value)]
            if key == "tools" and isinstance(value, list):
                parts = enumerate(value)
            if key in GUIDED_OBJECTS and isinstance(value, dict):
                parts = value.items()
            for name, part in parts:
                path = ".".join(str(step) for step in (place, key, name) if step != "")
                keyword = name if isinstance(name, str) and name else key
                _ConstraintMeter(self, path, key).measure_value(part, keyword)


class _ConstraintNode(NamedTuple):
    value: Any
    key: str = ""  # the keyword whose value this is; empty without a keyword
    depth: int = 0
    is_literal: bool = False
    enclosing: NestedRepetition = (
        NestedRepetition()
    )  # the repetition by the structural tags around the node


class _ConstraintMeter:
    """Measures one constraint, and refuses it as soon as it exceeds a limit."""

    def __init__(self, limits: StructuredOutputLimits, place: str, param: str) -> None:
        self._limits = limits
        self._place = place
        self._param = param
        self._max_characters = MAX_CHARACTERS["json"]
        self._counts: dict[str, int] = {}

    def measure_value(self, value: Any, key: str) -> None:
        """Measure a value and everything inside it; without recursion, since it may be deep."""
        kind = key.removeprefix(GUIDED_PREFIX)
        self._max_characters = MAX_CHARACTERS.get(kind, MAX_CHARACTERS["json"])
        pending = [_ConstraintNode(value, kind)]
        while pending:
            node = pending.pop()
            if node.depth > MAX_DEPTH:
                raise self._constraint_error(f"nested too deeply: at most {MAX_DEPTH} levels")
            match node.value:
                case str():
                    pending += self._visit_text(node)
                case dict():
                    pending += self._visit_object(node)
                case list():
                    pending += self._visit_list(node)
                case _:
                    self._add_and_check_count(
                        "characters", CHARACTERS_PER_NUMBER, self._max_characters
                    )

    def _visit_text(self, node: _ConstraintNode) -> Iterator[_ConstraintNode]:
        text, key = node.value, node.key
        self._add_and_check_count("characters", len(text), self._max_characters)
        if node.is_literal:
            return
        if key in REGEX_KEYWORDS:
            self._check_regex(text, node.enclosing)
        elif key in GRAMMAR_KEYWORDS:
            self._check_grammar(text, node.enclosing)
        elif key in JSON_TEXT_KEYWORDS and text.lstrip().startswith(("{", "[")):
            # The characters count in the string and again in the parsed value, so raise the limit.
            self._max_characters += len(text)
            yield node._replace(value=self._parse_json(text))

    def _visit_object(self, node: _ConstraintNode) -> Iterator[_ConstraintNode]:
        has_name_keys = node.key in NAME_KEYWORDS and not node.is_literal
        enclosing = self._enclosing_repetition(node)
        if node.key == "properties":
            self._add_and_check_count("properties", len(node.value), MAX_PROPERTIES)
        for key, value in node.value.items():
            self._add_and_check_count("characters", len(key) + 4, self._max_characters)
            if has_name_keys:
                if node.key == "patternProperties":
                    self._check_regex(key, enclosing)
                yield _ConstraintNode(value, "", node.depth + 1)
                continue
            name = key.removeprefix(GUIDED_PREFIX)
            is_reference = name == "$ref" and not node.is_literal
            if is_reference and isinstance(value, str) and value[:1] != "#":
                raise self._constraint_error(
                    "a $ref leads to a place in the same schema: it begins with #"
                )
            is_size = name in SIZE_KEYWORDS and not node.is_literal
            if is_size and isinstance(value, int) and value > MAX_SIZE:
                raise self._constraint_error(f"{name} is {value:.3g}; at most {MAX_SIZE:,}")
            is_literal = node.is_literal or name in LITERAL_KEYWORDS
            yield _ConstraintNode(value, name, node.depth + 1, is_literal, enclosing)

    def _visit_list(self, node: _ConstraintNode) -> Iterator[_ConstraintNode]:
        is_literal = node.is_literal or node.key in VALUE_LIST_KEYWORDS
        if node.key in VALUE_LIST_KEYWORDS:
            name = {"enum": "values", "choice": "choices"}[node.key]
            self._add_and_check_count(name, len(node.value), MAX_VALUES)
        elif node.key in BRANCH_KEYWORDS:
            unit = f"branches of {', '.join(sorted(BRANCH_KEYWORDS))}"
            self._add_and_check_count(unit, len(node.value), MAX_BRANCHES)
        if set(map(type, node.value)) <= NUMBER_TYPES:
            self._add_and_check_count(
                "characters", CHARACTERS_PER_NUMBER * len(node.value), self._max_characters
            )
            return
        for item in node.value:
            # Items of a list of schemas are schemas, so they have no keyword.
            yield _ConstraintNode(item, "", node.depth + 1, is_literal, node.enclosing)

    def _enclosing_repetition(self, node: _ConstraintNode) -> NestedRepetition:
        """Return the repetition around an object's contents: outer tags', combined with its own."""
        kind, max_times = node.value.get("type"), node.value.get("max")
        enclosing = node.enclosing
        if kind in ("plus", "star"):  # a tuple: a type may be a list, which is unhashable
            enclosing = NestedRepetition(loops=1).combine_with_outer(enclosing)
        elif kind == "repeat" and isinstance(max_times, int):
            enclosing = NestedRepetition(min(max_times, MAX_COUNT), 1).combine_with_outer(enclosing)
        if enclosing != node.enclosing:
            self._check_repetition(enclosing, enclosing.counts + enclosing.loops)
        return enclosing

    def _check_regex(self, pattern: str, enclosing: NestedRepetition) -> None:
        self._add_and_check_count("regular expressions", 1, MAX_PATTERNS)
        if len(pattern) > (limit := MAX_CHARACTERS["regex"]):
            raise self._count_error("characters of a regular expression", len(pattern), limit)
        self._check_pattern_structure(parse_regex(pattern), enclosing)

    def _check_grammar(self, text: str, enclosing: NestedRepetition) -> None:
        if len(text) > MAX_CHARACTERS["grammar"]:
            raise self._count_error("characters of a grammar", len(text), MAX_CHARACTERS["grammar"])
        self._add_and_check_count("lines of grammars", text.count("\n"), MAX_LINES)
        self._check_pattern_structure(parse_grammar(text), enclosing)

    def _check_pattern_structure(
        self, structure: PatternStructure, enclosing: NestedRepetition
    ) -> None:
        self._add_and_check_count("rules", structure.rules, MAX_RULES)
        self._add_and_check_count("alternatives", structure.alternatives, MAX_ALTERNATIVES)
        worst = structure.worst_repetition(self._limits.max_nesting).combine_with_outer(enclosing)
        self._check_repetition(
            worst, structure.repetition_depth + enclosing.counts + enclosing.loops
        )

    def _check_repetition(self, worst: NestedRepetition, depth: int) -> None:
        max_nesting, max_repetitions = self._limits.max_nesting, self._limits.max_repetitions
        if worst.counts > max_nesting:
            self._refuse_depth("counted repetitions", worst.counts, max_nesting)
        if depth > max_nesting + 1:
            self._refuse_depth("repetitions", depth, max_nesting + 1)
        if worst.times > max_repetitions:
            unit = "repetitions by counts inside each other"
            raise self._count_error(unit, worst.times, max_repetitions)

    def _refuse_depth(self, unit: str, depth: int, limit: int) -> None:
        raise self._constraint_error(
            f"at most {limit} {unit} inside each other; it has {depth} or more"
        )

    def _parse_json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except RecursionError:
            raise self._constraint_error(f"nested too deeply: at most {MAX_DEPTH} levels") from None
        except ValueError:
            return None  # vLLM reports the error

    def _add_and_check_count(self, unit: str, count: int, limit: int) -> None:
        self._counts[unit] = total = self._counts.get(unit, 0) + count
        if total > limit:
            raise self._count_error(unit, total, limit)

    def _count_error(self, unit: str, count: int, limit: int) -> InvalidInput:
        return self._constraint_error(f"at most {limit:,} {unit}; it has {count:,}")

    def _constraint_error(self, message: str) -> InvalidInput:
        return InvalidInput(f"{self._place}: {message}", param=self._param)
