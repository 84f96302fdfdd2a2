"""Adapters on the volume: which names lead to them, their files, and how they are removed."""

from contextlib import suppress
from pathlib import Path

import pytest

from worker.errors import NoSuchObject
from worker.volume.adapters import (
    CONFIG,
    WEIGHTS,
    adapter_files,
    adapter_names,
    adapter_version,
    remove,
)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Return the directory of an adapter, whose files nobody reads."""
    folder = tmp_path / "volume" / "adapters" / "good"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(b"weights")
    return folder


def found(adapter: Path, name: str = "good") -> tuple[bool, list[str]]:
    """Return whether an adapter is found by a name, and the names that are listed."""
    return adapter_version(adapter.parent, name) is not None, adapter_names(adapter.parent)


@pytest.mark.parametrize("name", ["good", "Good-2.1_x", "7b", "a" * 128])
def test_an_adapter_is_found_by_its_name(adapter: Path, name: str) -> None:
    adapter.rename(adapter.with_name(name))
    assert found(adapter, name) == (True, [name])
    assert None not in (adapter_version(adapter.parent, name) or [None])


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".good", "-good", "../adapters/good", "./good", "good/", "{}/good"),
        *("good\0", "good\n", "go od", "good\\", "góod", "\ud800", "*", "a" * 129),
    ],
)
def test_a_name_with_more_than_letters_digits_and_dots_is_none(adapter: Path, name: str) -> None:
    name = name.format(adapter.parent)
    # It is there, where a directory can be called so.
    with suppress(OSError, ValueError):
        adapter.rename(adapter.with_name(name))
    assert adapter_version(adapter.parent, name) is None


@pytest.mark.parametrize("linked", [".", CONFIG, WEIGHTS])
def test_a_link_out_of_the_directory_is_not_followed(adapter: Path, linked: str) -> None:
    outside = adapter.parent.parent / "outside"
    (adapter / linked).rename(outside)
    (adapter.parent / "good" if linked == "." else adapter / linked).symlink_to(outside)
    assert found(adapter) == (False, [])


def test_a_link_to_another_adapter_is_one_and_in_a_circle_none(adapter: Path) -> None:
    (adapter.parent / "latest").symlink_to("good")
    (adapter.parent / "circle").symlink_to("circle")
    assert adapter_version(adapter.parent, "latest") == adapter_version(adapter.parent, "good")
    assert found(adapter, "circle") == (False, ["good", "latest"])


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_changed_file_is_another_version_a_missing_one_hides_it(adapter: Path, file: str) -> None:
    before = adapter_version(adapter.parent, "good")
    (adapter / file).write_bytes((adapter / file).read_bytes() + b" ")
    assert adapter_version(adapter.parent, "good") != before
    (adapter / file).unlink()
    assert None in (adapter_version(adapter.parent, "good") or ())
    assert found(adapter) == (True, [])


def test_the_files_of_an_adapter_are_all_that_lie_in_it(adapter: Path) -> None:
    (adapter / "README.md").write_text("hello")
    (adapter / ".hidden").write_text("no")
    (adapter / "checkpoint-1").mkdir()
    secret = adapter.parent.parent / "secret"
    secret.write_text("no")
    (adapter / "secret.txt").symlink_to(secret)
    files = adapter_files(adapter.parent, "good")
    assert files == {name: adapter / name for name in ("README.md", CONFIG, WEIGHTS)}


def test_an_adapter_that_is_removed_is_gone_and_of_a_link_only_the_link(adapter: Path) -> None:
    (adapter / "checkpoint-1").mkdir()
    (adapter.parent / "latest").symlink_to("good")
    remove(adapter.parent, "latest")
    assert set(adapter_files(adapter.parent, "good")) == {CONFIG, WEIGHTS}
    remove(adapter.parent, "good")
    assert list(adapter.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["none", "../good", "."])
def test_what_is_no_adapter_has_no_files_and_is_not_removed(adapter: Path, name: str) -> None:
    for act in (adapter_files, remove):
        with pytest.raises(NoSuchObject):
            act(adapter.parent, name)
    assert adapter.is_dir()
    assert found(adapter / "no adapters") == (False, [])
