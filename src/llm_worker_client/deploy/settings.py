"""The worker's settings and their allowed values, from a JSON file; also masks secrets."""

import difflib
import json
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict

MASK = "***"
# Minimum length in characters of a masked secret. Shorter ones would match other strings.
MIN_SECRET_LENGTH = 8
# Minimum similarity of a misspelled name to the correct one (difflib's ratio, 0 to 1), and of one
# with few characters: fp16 for float16. Names of settings must be more similar, since other
# programs' variables resemble them.
MIN_SIMILARITY, MIN_SHORT_SIMILARITY, MIN_SETTING_SIMILARITY = 0.75, 0.65, 0.86
MAX_SHORT_LENGTH = 4

_BOUNDS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
_BOOLEANS = frozenset({"0", "1", "false", "true", "no", "yes", "off", "on"})
_NUMBERS = {
    "integer": re.compile(r"([+-]?\d[\d_]*)(?:\.0*)?"),
    "size": re.compile(r"([+-]?\d[\d_]*(?:\.\d*)?)[kKmMgGtT]?"),
    "number": re.compile(r"(.+)"),
}

# A reference that the platform replaces with a secret when it starts a worker.
_SECRET_REFERENCE = re.compile(r"\{\{\s*RUNPOD_SECRET_\w+\s*\}\}")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|(?:API)?KEY|SECRET|PASS(?:WORD|WD|PHRASE)?|PWD|PAT|CREDENTIALS?)$", re.I
)
# Keys of well-known services, and the user and password in a URL.
_SECRET_VALUE = re.compile(
    r"\b(?:hf_|rpa_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|nvapi-|AIza|AKIA)[\w-]{12,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.ASCII,
)


class AllowedValues(BaseModel):
    """The allowed values of a setting, as far as they can be checked without the worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["boolean", "integer", "json", "list", "number", "size"] | None = None
    # By pydantic's name of the constraint.
    bounds: dict[Literal["ge", "gt", "le", "lt"], float] = {}
    also: frozenset[str] = frozenset()  # additional strings, in lower case
    choices: tuple[str, ...] = ()  # regardless of case; values with a dot or a colon pass, too
    pattern: str | None = None  # for the whole string
    accepted: str = ""  # for error messages
    example: str | None = None

    def accepts(self, value: str) -> bool:
        if value.lower() in self.also:
            return True
        if self.pattern:
            return bool(re.fullmatch(self.pattern, value))
        if self.choices:
            return value.lower() in map(str.lower, self.choices) or bool({".", ":"} & {*value})
        if self.kind == "boolean":
            return value.lower() in _BOOLEANS
        if self.kind in {"json", "list"}:
            return _may_be_json(value)
        number = None
        if match := _NUMBERS[self.kind or "number"].fullmatch(value):
            with suppress(ValueError):
                number = float(match[1])
        return number is not None and all(
            _BOUNDS[key](number, limit) for key, limit in self.bounds.items()
        )

    def advice(self, value: str) -> str:
        """Return a hint about the allowed values, for a message that does not quote the value."""
        similar = find_similar_name(value.lower(), self.choices)
        suggestion = [f"did you mean {similar}?"] if similar else []
        return " ".join([*suggestion, self.accepted or f"one of {', '.join(self.choices)}"])


class SettingsListing(BaseModel):
    """The list of settings, generated from the worker's table of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vllm: str  # the release whose options are listed
    cuda: str  # the version that the worker's image requires of a host
    embedder: str  # the prefix of the names of an embedding model's settings
    secrets: frozenset[str]
    own: frozenset[str]  # the worker's own settings
    engines: frozenset[str]  # settings that the main model and the embedding model both have
    variables: frozenset[str]  # variables that libraries read
    # Correct names, by incorrect names that are too different for a spelling correction.
    meant: dict[str, str]
    removed: dict[str, str]  # reasons why settings of earlier releases have no effect
    values: dict[str, AllowedValues]  # of settings that the client can check

    @cached_property
    def setting_names(self) -> frozenset[str]:
        return self.own | self.engines | {self.embedder + name for name in self.engines}

    @cached_property
    def known_variables(self) -> frozenset[str]:
        """Names of all environment variables that the worker or one of its libraries reads."""
        return self.setting_names | self.variables

    def name_error(self, name: str) -> str | None:
        """Return an error message for a name; None if it is known or resembles no setting."""
        if name in self.known_variables:
            return None
        if reason := self.removed.get(name.removeprefix(self.embedder)):
            return f"{name} has no effect: {reason}"
        suggestion = self._suggest_name(name)
        return f"{name} is not a setting: did you mean {suggestion}?" if suggestion else None

    def value_error(self, name: str, value: str) -> str | None:
        """Return an error message for a value, without quoting it; None if no error is found."""
        allowed = self.values.get(name) or self.values.get(name.removeprefix(self.embedder))
        text = value.strip()
        # Blank values and vLLM's None count as unset; ``{{`` refers to a secret of the platform.
        if allowed is None or text in {"", "None"} or "{{" in text or allowed.accepts(text):
            return None
        example = f", for example {name}={allowed.example}" if allowed.example else ""
        return f"{name}: {allowed.advice(text)}{example}"

    def _suggest_name(self, name: str) -> str | None:
        upper = name.strip("-").replace("-", "_").upper()
        if upper in self.known_variables:
            return upper
        if upper in self.meant:
            return self.meant[upper]
        if (without_prefix := upper.removeprefix("VLLM_")) in self.setting_names:
            return without_prefix
        return find_similar_name(upper, sorted(self.setting_names), MIN_SETTING_SIMILARITY)


LISTING = SettingsListing.model_validate_json(
    resources.files(__package__).joinpath("settings.json").read_text(encoding="utf-8")
)


class SecretMasker:
    """Collects secrets and masks them in text."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add(self, values: Iterable[str]) -> None:
        """Mask these values and their JSON and ``repr`` forms from now on; ignore short values."""
        for value in values:
            if len(value) >= MIN_SECRET_LENGTH:
                self._values |= {value, json.dumps(value)[1:-1], repr(value)[1:-1]}

    def add_from_env(self, env: Mapping[str, str]) -> None:
        self.add(value for name, value in env.items() if contains_secret(name, value))

    def mask(self, text: str) -> str:
        """Replace the added secrets, and strings that look like keys of well-known services."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return _SECRET_VALUE.sub(MASK, text)


def find_similar_name(
    name: str, known: Iterable[str], min_similarity: float | None = None
) -> str | None:
    """Return the known name that a misspelled name probably means; None if none is similar."""
    if min_similarity is None:
        is_short = len(name) <= MAX_SHORT_LENGTH
        min_similarity = MIN_SHORT_SIMILARITY if is_short else MIN_SIMILARITY
    return next(iter(difflib.get_close_matches(name, list(known), 1, min_similarity)), None)


def contains_secret(name: str, value: str) -> bool:
    """Return whether an environment variable contains a secret, not just a reference to one."""
    setting, rest = name.removeprefix(LISTING.embedder), _SECRET_REFERENCE.sub("", value)
    if _SECRET_VALUE.search(rest):
        return True
    if not rest.strip() or rest != value:
        return False
    has_secret_name = setting not in LISTING.setting_names and bool(_SECRET_NAME.search(setting))
    return has_secret_name or setting in LISTING.secrets


def _may_be_json(value: str) -> bool:
    """Return False for invalid JSON; values that don't begin like JSON are left to the worker."""
    try:
        return not value.startswith(("{", "[")) or json.loads(value) is not None
    except (ValueError, RecursionError):
        return False
