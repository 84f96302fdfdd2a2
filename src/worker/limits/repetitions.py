"""How often the parts of a regular expression or a grammar repeat: read, never run.

A count inside a count inside a count makes a matcher keep track of more places than it can, at
every token. So the counts are read, in time that is linear in the text. Several syntaxes are read
alike, and a class of characters is as short as any of them would have it: what one of them may
take for a group is taken for one.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Larger counts are all the same: far too large.
ENDLESS = 10**9
DIGITS = len(str(ENDLESS)) - 1

_COUNT = r"\{\s*(?P<least>\d*)\s*(?P<comma>,)?\s*(?P<most>\d*)\s*\}"
_CLASS = r"\[(?:\\.|[^\]\\])*(?:\]|\Z)"
_REGEX = re.compile(
    rf"(?P<atom>\\[pPuxk]\{{[^}}]*\}}?|\\.|{_CLASS})|(?P<count>{_COUNT})|(?P<loop>[*+])"
    r"|(?P<open>\()|(?P<close>\))|(?P<alternative>\|)|(?P<skip>\?)"
    r"|(?P<other>[^\\\[(){*+|?]+|.)",
    re.DOTALL,
)
_QUOTED = r"\"(?:\\.|[^\"\\])*(?:\"|\Z)|'(?:\\.|[^'\\])*(?:'|\Z)"


def _grammar(atom: str, opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<skip>[ \t\r\n]+|\#[^\n]*|//[^\n]*|\?)|(?P<atom>{atom})"
        r"|(?P<slashed>/(?:\\.|[^/\\\n])+(?:/|\Z))"
        rf"|(?P<count>{_COUNT}|~[ \t]*(?P<first>\d+)(?:[ \t]*\.\.[ \t]*(?P<last>\d+))?)"
        rf"|(?P<loop>[*+])|(?P<open>{opening})|(?P<close>{closing})|(?P<alternative>\|)"
        r"|(?P<defined>::=|:(?!:))|(?P<name>[A-Za-z_][\w.-]*)|(?P<other>.)",
        re.DOTALL,
    )


_EBNF = _grammar(rf"{_QUOTED}|{_CLASS}", r"\(", r"\)")
# Brackets are around what may be left out.
_LARK = _grammar(_QUOTED, r"[(\[]", r"[)\]]")
_COMMENT = re.compile(r"(?:#|//).*")


class Repeated(NamedTuple):
    """How often a part is repeated by all counts around it together, and how many those are."""

    times: int = 1
    counts: int = 0
    loops: int = 0

    def within(self, outer: "Repeated") -> "Repeated":
        times = min(self.times * outer.times, ENDLESS)
        return Repeated(times, self.counts + outer.counts, self.loops + outer.loops)


@dataclass(slots=True)
class Reading:
    """What a regular expression or a grammar holds.

    ``parts`` has for each rule which rules it names, and how these are repeated in it; the empty
    name stands for text, and is also the one rule of a regular expression.
    """

    rules: int = 0
    alternatives: int = 0
    parts: dict[str, set[tuple[str, Repeated]]] = field(default_factory=lambda: defaultdict(set))

    @property
    def depth(self) -> int:
        """How many repetitions stand inside each other in one rule, counted or not."""
        found = (part.counts + part.loops for rule in self.parts.values() for _, part in rule)
        return max(found, default=0)

    def deepest(self, most: int) -> Repeated:
        """Return the worst repetition of any text, through the rules that name each other.

        Args:
            most: how deep counts may nest: what is deeper is not followed.
        """
        worst = Repeated()
        # The rules by how many counts are around them, each with the most times.
        levels: list[dict[str, Repeated]] = [dict.fromkeys(self.parts, Repeated())]
        levels += [{} for _ in range(most)]
        for counts, level in enumerate(levels):
            for name, part, inner in self._reached(level):
                found = inner.within(level[name])
                worst = max(worst, found, key=lambda one: (one.counts > most, one.times))
                if worst.counts > most:
                    return worst
                if part and found.counts > counts:
                    known = levels[found.counts].get(part)
                    if known is None or known.times < found.times:
                        levels[found.counts][part] = found
        return worst

    def _reached(self, level: dict[str, Repeated]) -> Iterator[tuple[str, str, Repeated]]:
        """Yield each part of each rule, and put the rules that are named without a count in."""
        waiting = sorted(level, key=lambda name: level[name].times)
        done: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in done:
                continue
            done.add(name)
            for part, inner in self.parts.get(name, ()):
                if part and not inner.counts and part not in done:
                    if part not in level or level[part].times < level[name].times:
                        level[part] = level[name]
                    waiting.append(part)
                yield name, part, inner


def regex(pattern: str) -> Reading:
    """Read a regular expression."""
    reading = Reading()
    tokens = list(_REGEX.finditer(pattern))
    reading.alternatives = sum(token.lastgroup == "alternative" for token in tokens)
    for _, repeated in _parts(tokens):
        reading.parts[""].add(("", repeated))
    return reading


def grammar(text: str) -> Reading:
    """Read a grammar in EBNF, or in Lark's syntax."""
    reading = Reading()
    # vLLM decides by this, too.
    is_ebnf = any("::=" in _COMMENT.sub("", line) for line in text.split("\n"))
    syntax = _EBNF if is_ebnf else _LARK
    tokens = [token for token in syntax.finditer(text) if token.lastgroup != "skip"]
    reading.alternatives = sum(token.lastgroup == "alternative" for token in tokens)
    ends = [*(index - 1 for index in _definitions(tokens)), len(tokens)]
    for first, end in itertools.pairwise(ends):
        reading.rules += 1
        rule = tokens[first][0]
        for token, repeated in _parts(tokens[first + 2 : end]):
            if token.lastgroup == "slashed":
                inner = regex(token[0].strip("/")).parts[""]
                reading.parts[rule] |= {("", part.within(repeated)) for _, part in inner}
            else:
                named = token[0] if token.lastgroup == "name" else ""
                reading.parts[rule].add((named, repeated))
    return reading


def _definitions(tokens: list[re.Match[str]]) -> Iterator[int]:
    for index, token in enumerate(tokens):
        if token.lastgroup == "defined" and index and tokens[index - 1].lastgroup == "name":
            yield index


def _parts(tokens: list[re.Match[str]]) -> Iterator[tuple[re.Match[str], Repeated]]:
    """Yield what is no operator, with how it is repeated; backwards, so that counts come first."""
    around, pending = [Repeated()], Repeated()
    for token in reversed(tokens):
        kind = token.lastgroup
        if kind == "count":
            pending = pending.within(_count(token))
        elif kind == "loop":
            pending = pending.within(Repeated(loops=1))
        elif kind == "close":
            around.append(pending.within(around[-1]))
            pending = Repeated()
        elif kind == "open":
            if len(around) > 1:
                around.pop()
            pending = Repeated()
        elif kind not in {"skip", "alternative"}:
            yield token, pending.within(around[-1])
            pending = Repeated()


def _count(token: re.Match[str]) -> Repeated:
    groups = token.groupdict()
    numbers = [groups.get(name) or "" for name in ("least", "most", "first", "last")]
    times = max(
        int(number) if len(number) <= DIGITS else ENDLESS
        for number in ["0", *filter(None, numbers)]
    )
    return Repeated(times, 1) if times > 1 else Repeated()
