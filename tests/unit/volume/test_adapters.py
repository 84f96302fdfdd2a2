"""Adapters on the volume: their names, their files, and their removal."""

from contextlib import suppress
from pathlib import Path

import pytest

from worker.errors import NoSuchObject
from worker.volume.adapters import (
    CONFIG,
    WEIGHTS,
    adapter_file_paths,
    adapter_names,
    adapter_version,
    explain_missing_adapter,
    remove_adapter,
)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Return the directory of an adapter with dummy files."""
    directory = tmp_path / "volume" / "adapters" / "good"
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text("{}")
    (directory / WEIGHTS).write_bytes(b"weights")
    return directory


def look_up(adapter: Path, name: str = "good") -> tuple[bool, list[str]]:
    """Return whether a name leads to an adapter, and the names of all adapters."""
    return adapter_version(adapter.parent, name) is not None, adapter_names(adapter.parent)


@pytest.mark.parametrize("name", ["good", "Good-2.1_x", "7b", "a" * 128])
def test_an_adapter_is_found_by_its_name(adapter: Path, name: str) -> None:
    adapter.rename(adapter.with_name(name))
    assert look_up(adapter, name) == (True, [name])
    assert None not in (adapter_version(adapter.parent, name) or [None])


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".good", "-good", "../adapters/good", "./good", "good/", "{}/good"),
        *("good\0", "good\n", "go od", "good\\", "góod", "\ud800", "*", "a" * 129),
    ],
)
def test_a_name_with_invalid_characters_is_not_found(adapter: Path, name: str) -> None:
    name = name.format(adapter.parent)
    # The directory gets this name if the file system allows it.
    with suppress(OSError, ValueError):
        adapter.rename(adapter.with_name(name))
    assert adapter_version(adapter.parent, name) is None


LINKED = "leads out of adapters/ by a symlink: copy the files into it"


@pytest.mark.parametrize("linked", [".", CONFIG, WEIGHTS])
def test_a_link_out_of_the_directory_is_not_followed(adapter: Path, linked: str) -> None:
    assert explain_missing_adapter(adapter.parent, "good") == ""
    outside = adapter.parent.parent / "outside"
    (adapter / linked).rename(outside)
    (adapter.parent / "good" if linked == "." else adapter / linked).symlink_to(outside)
    assert look_up(adapter) == (False, [])
    assert explain_missing_adapter(adapter.parent, "good") == f" adapters/good {LINKED}."


def test_the_reason_why_an_entry_is_no_adapter_names_its_flaw(adapter: Path) -> None:
    root = adapter.parent
    (root / "circle").symlink_to("circle")
    (root / "dangling").symlink_to(root.parent / "none")
    (root / "file").write_text("")
    (root / "go od").mkdir()
    (root / "half").mkdir()
    (root / "half" / CONFIG).write_text("{}")
    (root / ".hidden").mkdir()
    names = "has a name that no adapter can have: letters, digits and ._- only"
    flaws = {"circle": "is a symlink to itself", "dangling": LINKED, "file": "is no directory"}
    flaws |= {"go od": names, "half": f"has no {WEIGHTS}"}
    for name, flaw in flaws.items():
        assert explain_missing_adapter(root, name) == f" adapters/{name} {flaw}."
    for name in ("none", ".hidden", ".", "..", "../adapters", str(adapter), "\ud800", "", "\0"):
        assert explain_missing_adapter(root, name) == ""
    assert explain_missing_adapter(root / "none", "good") == ""


def test_a_link_to_another_adapter_is_followed_and_a_circular_link_is_not(adapter: Path) -> None:
    (adapter.parent / "latest").symlink_to("good")
    (adapter.parent / "circle").symlink_to("circle")
    assert adapter_version(adapter.parent, "latest") == adapter_version(adapter.parent, "good")
    assert look_up(adapter, "circle") == (False, ["good", "latest"])


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_changed_file_changes_the_version_and_a_missing_file_hides_the_adapter(
    adapter: Path, file: str
) -> None:
    before = adapter_version(adapter.parent, "good")
    (adapter / file).write_bytes((adapter / file).read_bytes() + b" ")
    assert adapter_version(adapter.parent, "good") != before
    (adapter / file).unlink()
    assert None in (adapter_version(adapter.parent, "good") or ())
    assert look_up(adapter) == (True, [])


def test_the_files_of_an_adapter_exclude_hidden_files_and_links_to_the_outside(
    adapter: Path,
) -> None:
    (adapter / "README.md").write_text("hello")
    (adapter / ".hidden").write_text("no")
    (adapter / "checkpoint-1").mkdir()
    secret = adapter.parent.parent / "secret"
    secret.write_text("no")
    (adapter / "secret.txt").symlink_to(secret)
    files = adapter_file_paths(adapter.parent, "good")
    assert files == {name: adapter / name for name in ("README.md", CONFIG, WEIGHTS)}


def test_removing_a_link_leaves_its_target_and_removing_an_adapter_deletes_it(
    adapter: Path,
) -> None:
    (adapter / "checkpoint-1").mkdir()
    (adapter.parent / "latest").symlink_to("good")
    remove_adapter(adapter.parent, "latest")
    assert set(adapter_file_paths(adapter.parent, "good")) == {CONFIG, WEIGHTS}
    remove_adapter(adapter.parent, "good")
    assert list(adapter.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["none", "../good", "."])
def test_a_missing_adapter_has_no_files_and_can_not_be_removed(adapter: Path, name: str) -> None:
    for function in (adapter_file_paths, remove_adapter):
        with pytest.raises(NoSuchObject):
            function(adapter.parent, name)
    assert adapter.is_dir()
    assert look_up(adapter / "no adapters") == (False, [])
