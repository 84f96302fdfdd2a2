"""Looks at the volume's adapters, which find those that can't be loaded."""

from pathlib import Path

import pytest

from worker.engine.adapters import looks as module
from worker.engine.adapters.files import BrokenAdapter
from worker.engine.adapters.looks import Looks


class Checked:
    """A check that refuses adapters whose configuration says how, and counts what it reads."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, folder: Path) -> None:
        self.read.append(folder.name)
        if wrong := (folder / "adapter_config.json").read_text():
            raise BrokenAdapter(wrong)


@pytest.fixture
def checked() -> Checked:
    return Checked()


@pytest.fixture
def looks(tmp_path: Path, checked: Checked) -> Looks:
    return Looks(tmp_path, checked)


def put(root: Path, name: str, wrong: str = "") -> Path:
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(wrong)
    (folder / "adapter_model.safetensors").write_text("")
    return folder


def reasons(looks: Looks) -> dict[str, str | None]:
    return {name: reason for name, (_, reason) in looks.all().items()}


def test_a_reason_is_found_once_for_each_version(
    tmp_path: Path, looks: Looks, checked: Checked
) -> None:
    put(tmp_path, "good")
    put(tmp_path, "high", "its rank is 64")
    for _ in range(3):
        assert reasons(looks) == {"good": None, "high": "its rank is 64"}
    assert checked.read == ["good", "high"]
    put(tmp_path, "high", "")
    assert reasons(looks) == {"good": None, "high": None}
    assert checked.read == ["good", "high", "high"]


def test_an_adapter_that_is_gone_is_forgotten(tmp_path: Path, looks: Looks) -> None:
    folder = put(tmp_path, "high", "its rank is 64")
    assert reasons(looks) == {"high": "its rank is 64"}
    (folder / "adapter_model.safetensors").unlink()
    assert reasons(looks) == {}


def test_a_listing_looks_at_a_few_and_the_next_one_at_more(
    tmp_path: Path, looks: Looks, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    for name in "abc":
        put(tmp_path, name, "broken")
    assert reasons(looks) == {"a": "broken", "b": "broken", "c": None}
    assert reasons(looks) == dict.fromkeys("abc", "broken")
    assert checked.read == ["a", "b", "c"]


def test_what_can_not_be_read_counts_as_sound(
    tmp_path: Path, looks: Looks, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a")

    def unreadable(_: Path) -> None:
        raise OSError("stale")

    monkeypatch.setattr(looks, "_check", unreadable)
    assert reasons(looks) == {"a": None}
