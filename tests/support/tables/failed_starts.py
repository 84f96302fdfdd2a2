"""Misconfigurations with which a worker does not start, and faults of its machine.

They are in failed_starts.yaml. ``<folder>`` in a value stands for a directory that holds what
``place`` writes.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

from support.models.configs import copied
from support.processes.commands import DEMO
from support.tables.planted_mistakes import FILES


class Row(NamedTuple):
    """A start that fails; ``hub``: it downloads, from a hub on loopback."""

    done: str
    settings: dict[str, str]
    named: tuple[str, ...]
    hub: bool = False


_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def _row(done: str, named: str, changes: dict[str, str | None], *, hub: bool = False) -> Row:
    settings = {"MODEL_NAME": "<folder>/demo", **changes}
    return Row(done, {name: value for name, value in settings.items() if value}, (named,), hub)


MISTAKES = (
    *(_row(done, *rest) for done, rest in _DATA["mistakes"].items()),
    *(_row(done, *rest, hub=True) for done, rest in _DATA["of downloads"].items()),
)
FAULTS = tuple(
    Row(done, {"MODEL_NAME": f"<folder>/{kind}", "TRUST_REMOTE_CODE": "1"}, ())
    for kind, (done, _) in _DATA["faults"].items()
)


def place(folder: Path) -> None:
    """Write the models and files that the rows name."""
    for name, held in FILES.items():
        (folder / name).write_text(held)
    copied(DEMO, folder / "demo")
    copied(DEMO, folder / "architecture", architectures=["FooForCausalLM"])
    for kind, (_, raised) in _DATA["faults"].items():
        code = {"AutoConfig": "configuration_foo.FooConfig"}
        copied(DEMO, folder / kind, auto_map=code, model_type="foo")
        raising = f"import transformers\nraise RuntimeError({raised!r})\nclass FooConfig: ...\n"
        (folder / kind / "configuration_foo.py").write_text(raising)
