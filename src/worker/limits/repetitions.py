"""Nested repetitions in regular expressions and grammars, measured without compiling them.

A count inside a count inside a count makes a matcher track more positions than it can handle, for
every token. This module reads the counts in time that is linear in the text. It reads all syntaxes
of regular expressions in the same way: a character class ends at the first position where any of
them could end it, so text that is a group in one of them counts as a group.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# All larger counts are treated as this count: they are far too large.
MAX_COUNT = 10**9
MAX_COUNT_DIGITS = len(str(MAX_COUNT)) - 1

_COUNT = r"\{\s*(?P<least>\d*)\s*(?P<comma>,)?\s*(?P<most>\d*)\s*\}"
_CLASS = r"\[(?:\\.|[^\]\\])*(?:\]|\Z)"
_REGEX = re.compile(
    rf"(?P<atom>\\[pPuxk]\{{[^}}]*\}}?|\\.|{_CLASS})|(?P<count>{_COUNT})|(?P<loop>[*+])"
    r"|(?P<open>\()|(?P<close>\))|(?P<alternative>\|)|(?P<skip>\?)"
    r"|(?P<other>[^\\\[(){*+|?]+|.)",
    re.DOTALL,
)
_QUOTED = r"\"(?:\\.|[^\"\\])*(?:\"|\Z)|'(?:\\.|[^'\\])*(?:'|\Z)"


def _grammar_pattern(atom: str, opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<skip>[ \t\r\n]+|\#[^\n]*|//[^\n]*|\?)|(?P<atom>{atom})"
        r"|(?P<slashed>/(?:\\.|[^/\\\n])+(?:/|\Z))"
        rf"|(?P<count>{_COUNT}|~[ \t]*(?P<first>\d+)(?:[ \t]*\.\.[ \t]*(?P<last>\d+))?)"
        rf"|(?P<loop>[*+])|(?P<open>{opening})|(?P<close>{closing})|(?P<alternative>\|)"
        r"|(?P<defined>::=|:(?!:))|(?P<name>[A-Za-z_][\w.-]*)|(?P<other>.)",
        re.DOTALL,
    )


_EBNF = _grammar_pattern(rf"{_QUOTED}|{_CLASS}", r"\(", r"\)")
# In Lark's syntax, brackets enclose optional parts.
_LARK = _grammar_pattern(_QUOTED, r"[(\[]", r"[)\]]")
_COMMENT = re.compile(r"(?:#|//).*")


class NestedRepetition(NamedTuple):
    """A pattern part's repetition: product of its counts, and the numbers of counts and loops."""

    times: int = 1
    counts: int = 0
    loops: int = 0

    def combine_with_outer(self, outer: "NestedRepetition") -> "NestedRepetition":
        times = min(self.times * outer.times, MAX_COUNT)
        return NestedRepetition(times, self.counts + outer.counts, self.loops + outer.loops)


@dataclass(slots=True)
class PatternStructure:
    """The repetitions in a regular expression (which has no rules) or a grammar.

    ``parts`` maps each rule's name to the rules that it references, with their repetitions. An
    empty name stands for text (as a part), or for the whole regular expression (as a rule).
    """

    rules: int = 0
    alternatives: int = 0
    parts: dict[str, set[tuple[str, NestedRepetition]]] = field(
        default_factory=lambda: defaultdict(set)
    )

    @property
    def repetition_depth(self) -> int:
        """The deepest nesting of counts (``{2,5}``) and loops (``*``) within one rule."""
        depths = (part.counts + part.loops for rule in self.parts.values() for _, part in rule)
        return max(depths, default=0)

    def worst_repetition(self, max_nesting: int) -> NestedRepetition:
        """Return the worst repetition of any text, following references between rules.

        More than ``max_nesting`` nested counts are the worst, and end the search. Otherwise the
        largest product of counts is the worst.
        """
        worst = NestedRepetition()
        # The rules by number of enclosing counts, each with its largest product of counts.
        levels: list[dict[str, NestedRepetition]] = [dict.fromkeys(self.parts, NestedRepetition())]
        levels += [{} for _ in range(max_nesting)]
        for counts, level in enumerate(levels):
            for name, part, inner in self._walk_level(level):
                repetition = inner.combine_with_outer(level[name])
                worst = max(worst, repetition, key=lambda r: (r.counts > max_nesting, r.times))
                if worst.counts > max_nesting:
                    return worst
                if part and repetition.counts > counts:
                    previous = levels[repetition.counts].get(part)
                    if previous is None or previous.times < repetition.times:
                        levels[repetition.counts][part] = repetition
        return worst

    def _walk_level(
        self, level: dict[str, NestedRepetition]
    ) -> Iterator[tuple[str, str, NestedRepetition]]:
        """Yield (rule, part, repetition) for a level; add to it rules referenced without counts."""
        pending = sorted(level, key=lambda name: level[name].times)
        visited: set[str] = set()
        while pending:
            name = pending.pop()
            if name in visited:
                continue
            visited.add(name)
            for part, inner in self.parts.get(name, ()):
                if part and not inner.counts and part not in visited:
                    if part not in level or level[part].times < level[name].times:
                        level[part] = level[name]
                    pending.append(part)
                yield name, part, inner


def parse_regex(pattern: str) -> PatternStructure:
    structure = PatternStructure()
    tokens = list(_REGEX.finditer(pattern))
    structure.alternatives = sum(token.lastgroup == "alternative" for token in tokens)
    for _, repetition in _operands_with_repetition(tokens):
        structure.parts[""].add(("", repetition))
    return structure


def parse_grammar(text: str) -> PatternStructure:
    """Parse the structure of a grammar in EBNF or in Lark's syntax."""
    structure = PatternStructure()
    # vLLM distinguishes the two syntaxes in the same way.
    is_ebnf = any("::=" in _COMMENT.sub("", line) for line in text.split("\n"))
    syntax = _EBNF if is_ebnf else _LARK
    tokens = [token for token in syntax.finditer(text) if token.lastgroup != "skip"]
    structure.alternatives = sum(token.lastgroup == "alternative" for token in tokens)
    ends = [*(index - 1 for index in _definition_indexes(tokens)), len(tokens)]
    for first, end in itertools.pairwise(ends):
        structure.rules += 1
        rule = tokens[first][0]
        for token, repetition in _operands_with_repetition(tokens[first + 2 : end]):
            if token.lastgroup == "slashed":
                inner = parse_regex(token[0].strip("/")).parts[""]
                structure.parts[rule] |= {
                    ("", part.combine_with_outer(repetition)) for _, part in inner
                }
            else:
                name = token[0] if token.lastgroup == "name" else ""
                structure.parts[rule].add((name, repetition))
    return structure


def _definition_indexes(tokens: list[re.Match[str]]) -> Iterator[int]:
    for index, token in enumerate(tokens):
        if token.lastgroup == "defined" and index and tokens[index - 1].lastgroup == "name":
            yield index


def _operands_with_repetition(
    tokens: list[re.Match[str]],
) -> Iterator[tuple[re.Match[str], NestedRepetition]]:
    """Yield all tokens except operators, each with its repetition, from the last to the first."""
    enclosing, pending = [NestedRepetition()], NestedRepetition()
    for token in reversed(tokens):
        kind = token.lastgroup
        if kind == "count":
            pending = pending.combine_with_outer(_parse_count(token))
        elif kind == "loop":
            pending = pending.combine_with_outer(NestedRepetition(loops=1))
        elif kind == "close":
            enclosing.append(pending.combine_with_outer(enclosing[-1]))
            pending = NestedRepetition()
        elif kind == "open":
            if len(enclosing) > 1:
                enclosing.pop()
            pending = NestedRepetition()
        elif kind not in {"skip", "alternative"}:
            yield token, pending.combine_with_outer(enclosing[-1])
            pending = NestedRepetition()


def _parse_count(token: re.Match[str]) -> NestedRepetition:
    groups = token.groupdict()
    numbers = [groups.get(name) or "" for name in ("least", "most", "first", "last")]
    times = max(
        int(number) if len(number) <= MAX_COUNT_DIGITS else MAX_COUNT
        for number in ["0", *filter(None, numbers)]
    )
    return NestedRepetition(times, 1) if times > 1 else NestedRepetition()
