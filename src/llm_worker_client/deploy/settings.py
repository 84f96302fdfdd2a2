"""The worker's settings: what they take, from the listing that ships with the client; secrets."""

import difflib
import json
import operator
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict

MASK = "***"
# Characters: a shorter secret stands in too many other texts.
SHORTEST = 8
# A name at least this similar to a known one is a misspelling (difflib's ratio, 0 to 1).
NEAR_MISS = 0.86

_BOUNDS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
_BOOLEANS = frozenset({"0", "1", "false", "true", "no", "yes", "off", "on"})
_NUMBERS = {
    "integer": re.compile(r"([+-]?\d[\d_]*)(?:\.0*)?"),
    "size": re.compile(r"([+-]?\d[\d_]*(?:\.\d*)?)[kKmMgGtT]?"),
    "number": re.compile(r"(.+)"),
}

# What the platform replaces by the secret of that name when it starts a worker.
_REFERENCE = re.compile(r"\{\{\s*RUNPOD_SECRET_\w+\s*\}\}")
_NAMED = re.compile(
    r"(?:^|_)(?:TOKEN|(?:API)?KEY|SECRET|PASS(?:WORD|WD|PHRASE)?|PWD|PAT|CREDENTIALS?)$", re.I
)
# Keys of well-known services, and what stands before the host in an address.
_SHAPED = re.compile(
    r"\b(?:hf_|rpa_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|nvapi-|AIza|AKIA)[\w-]{12,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.ASCII,
)


class Values(BaseModel):
    """What a setting takes, as far as a text alone shows it.

    Attributes:
        kind: of what it reads.
        bounds: of a number, by pydantic's names for them.
        also: texts that are taken beside.
        choices: all values, in any case; classes of one's own have a dot or a colon.
        pattern: that all of a text matches.
        accepted: the same in words.
        example: a value that is taken.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["boolean", "integer", "json", "list", "number", "size"] | None = None
    bounds: dict[Literal["ge", "gt", "le", "lt"], float] = {}
    also: frozenset[str] = frozenset()
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    accepted: str = ""
    example: str | None = None

    def take(self, value: str) -> bool:
        if value.lower() in self.also:
            return True
        if self.pattern:
            return bool(re.fullmatch(self.pattern, value))
        if self.choices:
            return value.lower() in map(str.lower, self.choices) or bool({".", ":"} & {*value})
        if self.kind == "boolean":
            return value.lower() in _BOOLEANS
        return _is_json(value) if self.kind in {"json", "list"} else self._in_bounds(value)

    def advice(self, value: str) -> str:
        """Say what is taken instead of a value, which is not quoted."""
        near = difflib.get_close_matches(value.lower(), self.choices, n=1)
        meant = [f"did you mean {near[0]}?"] if near else []
        return " ".join([*meant, self.accepted or f"one of {', '.join(self.choices)}"])

    def _in_bounds(self, value: str) -> bool:
        written = _NUMBERS[self.kind or "number"].fullmatch(value)
        try:
            number = float(written[1]) if written else None
        except ValueError:
            return False
        return number is not None and all(
            _BOUNDS[key](number, limit) for key, limit in self.bounds.items()
        )


class Listing(BaseModel):
    """The listing, made from the worker's table of settings.

    Attributes:
        vllm: the release that the options are of.
        cuda: the version that the worker's image needs of a host.
        proposed: values that suit a new endpoint better than the defaults.
        embedder: what the names of an embedding model's settings begin with.
        secrets: settings whose value is a secret.
        own: the worker's own settings.
        engines: settings that each engine has.
        variables: that libraries read.
        meant: right names, by wrong ones that are not similar.
        removed: why settings of earlier releases have no effect.
        values: what settings take, where that can be checked here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vllm: str
    cuda: str
    proposed: dict[str, str]
    embedder: str
    secrets: frozenset[str]
    own: frozenset[str]
    engines: frozenset[str]
    variables: frozenset[str]
    meant: dict[str, str]
    removed: dict[str, str]
    values: dict[str, Values]

    @cached_property
    def settings(self) -> frozenset[str]:
        return self.own | self.engines | {self.embedder + name for name in self.engines}

    @cached_property
    def known(self) -> frozenset[str]:
        """All names that the worker or a library of its own reads."""
        return self.settings | self.variables

    def doubt(self, name: str) -> str | None:
        """Return what is wrong with a name, or None if it is known or resembles no setting."""
        if name in self.known:
            return None
        if why := self.removed.get(name.removeprefix(self.embedder)):
            return f"{name} has no effect: {why}"
        right = self._meant(name)
        return f"{name} is not a setting: did you mean {right}?" if right else None

    def wrong(self, name: str, value: str) -> str | None:
        """Return what is wrong with a setting's value, which is not quoted; None if it may do."""
        known = self.values.get(name) or self.values.get(name.removeprefix(self.embedder))
        text = value.strip()
        # Blanks and vLLM's None count as unset; what a secret holds only the platform knows.
        if known is None or text in {"", "None"} or "{{" in text or known.take(text):
            return None
        example = f", for example {name}={known.example}" if known.example else ""
        return f"{name}: {known.advice(text)}{example}"

    def _meant(self, name: str) -> str | None:
        upper = name.strip("-").replace("-", "_").upper()
        if upper in self.known:
            return upper
        if upper in self.meant:
            return self.meant[upper]
        if (without := upper.removeprefix("VLLM_")) in self.settings:
            return without
        near = difflib.get_close_matches(upper, sorted(self.settings), n=1, cutoff=NEAR_MISS)
        return near[0] if near else None


LISTING = Listing.model_validate_json(
    resources.files(__package__).joinpath("settings.json").read_text(encoding="utf-8")
)


class Secrets:
    """The secrets that are known so far, for masking."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def hide(self, values: Iterable[str]) -> None:
        """Mask these, too, in all ways in which they may be written."""
        for value in values:
            if len(value) >= SHORTEST:
                self._values |= {value, json.dumps(value)[1:-1], repr(value)[1:-1]}

    def learn(self, env: Mapping[str, str]) -> None:
        """Mask the secrets among the variables of an endpoint, which others may have set."""
        self.hide(value for name, value in env.items() if is_secret(name, value))

    def masked(self, text: str) -> str:
        """Return a text without the secrets in it."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return _SHAPED.sub(MASK, text)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable has a secret's value, rather than a reference to one."""
    bare, rest = name.removeprefix(LISTING.embedder), _REFERENCE.sub("", value)
    if _SHAPED.search(rest):
        return True
    if not rest.strip() or rest != value:
        return False
    return bare in LISTING.secrets or (bare not in LISTING.settings and bool(_NAMED.search(bare)))


def _is_json(value: str) -> bool:
    """Check what begins as JSON; other ways of writing it are the worker's to read."""
    try:
        return not value.startswith(("{", "[")) or json.loads(value) is not None
    except (ValueError, RecursionError):
        return False
