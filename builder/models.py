"""The page about families of models: how vLLM runs each, or since which release it doesn't.

``models.toml`` has the families; the installed vLLM, transformers and the record of vLLM's removals
say how they run.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import transformers
from pages import fold, markdown_table
from vllm.transformers_utils import config as vllm_config

from worker.engine.model_config import registered_model_names
from worker.settings import history

PAGE = "docs/models.md"
_FAMILIES_FILE = Path(__file__).with_name("models.toml")
_INTRODUCTION = Path(__file__).with_name("models.md")


class Support(StrEnum):
    """How the worker runs a family."""

    NATIVE = "natively"
    TRUSTED = "with `TRUST_REMOTE_CODE=1`"
    TRANSFORMERS = "by transformers' code"
    NOT_SERVED = "not served: it only transcribes"
    GONE = "gone since vLLM"
    NEVER = "vLLM has never had it"


@dataclass(frozen=True)
class Family:
    """A row of models.toml, which documents the fields."""

    title: str
    models: tuple[str, ...]
    architectures: tuple[str, ...]
    model_type: str = ""
    code: str = ""
    by_transformers: bool = False
    transcribes: bool = False
    note: str = ""

    @property
    def support(self) -> Support:
        """How the worker runs the family's architectures, all in the same way."""
        (support,) = {self._support(architecture) for architecture in self.architectures}
        return support

    def describe_support(self) -> str:
        """Return the cell of the table."""
        support = self.support
        text = f"{support}, for its {self.code}" if self.code else str(support)
        if support is Support.GONE:
            architecture = self.architectures[0]
            removal = history.find_removal("architectures", architecture)
            text += f" {removal.first_series_without}" if removal else ""
            if successor := history.find_successor(architecture):
                text += f"; for example `{successor}` instead"
        return "; ".join(filter(None, (text, self.note)))

    def _support(self, architecture: str) -> Support:
        if self.transcribes:
            return Support.NOT_SERVED
        if registered_model_names([architecture]):
            is_trusted = self.code or not _knows_config(architecture, self.model_type)
            return Support.TRUSTED if is_trusted else Support.NATIVE
        if architecture in list_transformers_names() and self.by_transformers:
            return Support.TRANSFORMERS
        is_removed = history.find_removal("architectures", architecture)
        return Support.GONE if is_removed else Support.NEVER


def read_families() -> dict[str, list[Family]]:
    """Return the families by the title of their section."""
    sections = tomllib.loads(_FAMILIES_FILE.read_text())
    return {
        section: [_read_family(title, row) for title, row in rows.items()]
        for section, rows in sections.items()
    }


def build_page(vllm: str) -> str:
    """Return the content of ``docs/models.md``."""
    introduction = _INTRODUCTION.read_text().replace("{vllm}", vllm)
    parts = [introduction.replace("{oldest}", history.OLDEST_VLLM).strip()]
    sections = read_families()
    for section, families in sections.items():
        rows = (
            [
                family.title,
                ", ".join(f"`{model}`" for model in family.models),
                ", ".join(f"`{architecture}`" for architecture in family.architectures),
                family.describe_support(),
            ]
            for family in families
        )
        parts.append(f"## {section}")
        parts.append(markdown_table(("family", "for example", "architectures", "runs"), rows))
    return "\n\n".join([*parts, "\n".join(_removals(chain(*sections.values())))]) + "\n"


def _read_family(title: str, row: Mapping[str, Any]) -> Family:
    lists = {name: tuple(row[name]) for name in ("models", "architectures")}
    return Family(title, **{**row, **lists})


def _removals(families: Iterable[Family]) -> Iterator[str]:
    """Yield the lines about all architectures that vLLM has removed."""
    removed = history.load_history()["removed"]["architectures"]
    running = {
        architecture
        for family in families
        if family.support is Support.TRANSFORMERS
        for architecture in family.architectures
    }
    gone = [name for name in removed if not registered_model_names([name]) and name not in running]
    rows = (
        [f"`{name}`", removed[name].split()[0], f"`{successor}`" if successor else ""]
        for name in sorted(gone)
        for successor in [history.find_successor(name)]
    )
    yield "## Gone from vLLM\n"
    table = markdown_table(("architecture", "last known release", "instead, for example"), rows)
    yield fold(f"{len(gone)} architectures", table)


@cache
def list_transformers_names() -> frozenset[str]:
    """Return the names in transformers; listing them takes half a second."""
    return frozenset(dir(transformers))


def _knows_config(architecture: str, model_type: str) -> bool:
    """Return whether the installed packages can read the configuration of a model."""
    if architecture in list_transformers_names():
        return True
    if not model_type:
        raise ValueError(f"{_FAMILIES_FILE.name}: {architecture} needs a model_type")
    # These are the three places in which vLLM looks for a class before it asks for trust.
    return (
        model_type in vllm_config._CONFIG_REGISTRY
        or model_type in vllm_config._ARCHITECTURE_TO_MODEL_TYPE.values()
        or model_type in transformers.CONFIG_MAPPING
    )
