"""Keeps secrets out of plans and of everything that is printed."""

import json
import re
from collections.abc import Iterable, Mapping

from llm_worker_client.deploy.settings import LISTING

MASK = "***"
# Characters: a shorter text stands in too many others.
SHORTEST = 8

# What the platform replaces by the secret of that name when it starts a worker.
REFERENCE = re.compile(r"\{\{\s*RUNPOD_SECRET_\w+\s*\}\}")
_NAMED = re.compile(
    r"(?:^|_)(?:TOKEN|(?:API)?KEY|SECRET|PASS(?:WORD|WD|PHRASE)?|PWD|PAT|CREDENTIALS?)$", re.I
)
# Keys of well-known services, and what stands before the host in an address.
_SHAPED = re.compile(
    r"\b(?:hf_|rpa_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|nvapi-|AIza|AKIA)[\w-]{12,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.ASCII,
)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable has a secret's value, rather than a reference to one."""
    bare, rest = name.removeprefix(LISTING.embedder), REFERENCE.sub("", value)
    if _SHAPED.search(rest):
        return True
    if not rest.strip() or rest != value:
        return False
    return bare in LISTING.secrets or (bare not in LISTING.settings and bool(_NAMED.search(bare)))


def refusal(name: str) -> str:
    return (
        f"settings.{name}: a secret does not belong in a plan: save it among the console's "
        f"secrets, and give {name}={{{{ RUNPOD_SECRET_<its name> }}}}"
    )


class Secrets:
    """The secrets that are known so far, for masking."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        self.hide(values)

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
