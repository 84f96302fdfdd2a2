"""Mistakes in settings with which a worker does not start, and faults of its machine.

The rows are in failed_starts.yaml. ``<folder>`` in a value is replaced with the directory to which
``write_models`` writes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from support.models.configs import copy_model
from support.models.damaged import copy_damaged
from support.models.minilm import MODEL as EMBEDDER
from support.processes.commands import DEMO
from support.tables.planted_mistakes import FILES


class FailedStartRow(NamedTuple):
    """A startup that fails; ``hub``: whether the worker downloads from a hub on loopback."""

    mistake: str
    settings: dict[str, str]
    named_settings: tuple[str, ...]
    hub: bool = False


_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def _row(
    done: str, named: str, changes: dict[str, str | None], *, hub: bool = False
) -> FailedStartRow:
    settings = {"MODEL_NAME": "<folder>/demo", **changes}
    return FailedStartRow(
        done, {name: value for name, value in settings.items() if value}, (named,), hub
    )


def _damage_rows(setting: str, prefix: str = "") -> Iterator[FailedStartRow]:
    for damage, words in _DATA[f"damaged {prefix or 'model'}s"].items():
        name = f"{prefix} {damage}".strip()
        settings = {"MODEL_NAME": "<folder>/demo", setting: f"<folder>/{_directory_name(name)}"}
        mistake = f"{prefix}: {damage}" if prefix else damage
        yield FailedStartRow(mistake, settings, (setting, words))


def _directory_name(damage: str) -> str:
    return damage.replace(" ", "-")


MISTAKES = (
    *(_row(done, *rest) for done, rest in _DATA["mistakes"].items()),
    *_damage_rows("MODEL_NAME"),
    *_damage_rows("EMBEDDING_MODEL_NAME", "embedder"),
    *(_row(done, *rest, hub=True) for done, rest in _DATA["download mistakes"].items()),
)
FAULTS = tuple(
    FailedStartRow(done, {"MODEL_NAME": f"<folder>/{kind}", "TRUST_REMOTE_CODE": "1"}, ())
    for kind, (done, _) in _DATA["faults"].items()
)


def write_models(folder: Path) -> None:
    """Write the models and files that the rows need."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    copy_model(DEMO, folder / "demo")
    for damage in _DATA["damaged models"]:
        copy_damaged(DEMO, folder / _directory_name(damage), damage)
    for damage in _DATA["damaged embedders"]:
        copy_damaged(EMBEDDER, folder / _directory_name(f"embedder {damage}"), damage)
    for kind, (_, raised) in _DATA["faults"].items():
        code = {"AutoConfig": "configuration_foo.FooConfig"}
        copy_model(DEMO, folder / kind, auto_map=code, model_type="foo")
        raising = f"import transformers\nraise RuntimeError({raised!r})\nclass FooConfig: ...\n"
        (folder / kind / "configuration_foo.py").write_text(raising)
