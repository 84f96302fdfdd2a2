"""Which releases of vLLM had an option, a choice or an architecture.

``builder/vllm_history.py`` makes the record, from some of vLLM's releases rather than all of them.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("history.json")


@dataclass(frozen=True)
class Lifetime:
    """From the first release seen with something to the last one, if it has gone since."""

    first: str
    last: str | None = None

    @property
    def gone(self) -> str | None:
        """The first release seen without it."""
        if self.last is None:
            return None
        releases = _record()["releases"]
        after: str = releases[releases.index(self.last) + 1]
        return after

    @property
    def since(self) -> str | None:
        """The series of releases (0.18) without it: not every release was looked at."""
        return self.gone and ".".join(self.gone.split(".")[:2])


def option(name: str) -> Lifetime | None:
    """Look up an option of vLLM's server by its name as a variable (``SWAP_SPACE``)."""
    return _lifetime("options", name)


def choice(option: str, value: str) -> Lifetime | None:
    """Look up a value of an option whose choices are recorded (``QUANTIZATION``, ``awq``)."""
    return _lifetime("choices", f"{option}={value}")


def architecture(name: str) -> Lifetime | None:
    """Look up a model's architecture, as its configuration names it (``LlamaForCausalLM``)."""
    return _lifetime("architectures", name)


def oldest() -> str:
    """Tell the oldest release seen: what it had may be older still."""
    release: str = _record()["releases"][0]
    return release


def _lifetime(section: str, name: str) -> Lifetime | None:
    releases = _record()[section].get(name)
    return Lifetime(*releases.split()) if releases else None


@cache
def _record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record
