"""Adapters on the volume: which names lead to them, their files, and how they are removed."""

from pathlib import Path

import pytest
from support.models.lora import CONFIG, WEIGHTS

from worker.errors import NoSuchObject
from worker.volume.adapters import adapter_files, adapter_names, adapter_version, remove


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Return the directory of an adapter, whose files nobody reads."""
    folder = tmp_path / "volume" / "adapters" / "good"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(b"weights")
    return folder


# Names


@pytest.mark.parametrize("name", ["good", "Good-2.1_x", "7b", "a" * 128])
def test_an_adapter_is_found_by_its_name(adapter: Path, name: str) -> None:
    adapter.rename(adapter.with_name(name))
    assert None not in (adapter_version(adapter.parent, name) or [None])
    assert adapter_names(adapter.parent) == [name]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            ".good",
            "-good",
            "../adapters/good",
            "./good",
            "good/",
            "good/.",
            "/good",
        ),
        *("good\0", "good\n", "go od", "good\\", "góod", "\ud800", "*", "a" * 129, "{}/good"),
    ],
)
def test_a_name_with_more_than_letters_digits_and_dots_is_none(adapter: Path, name: str) -> None:
    assert adapter_version(adapter.parent, name.format(adapter.parent)) is None


@pytest.mark.parametrize("linked", [".", CONFIG, WEIGHTS])
def test_a_link_out_of_the_directory_is_not_followed(adapter: Path, linked: str) -> None:
    outside = adapter.parent.parent / "outside"
    (adapter / linked).rename(outside)
    (adapter.parent / "good" if linked == "." else adapter / linked).symlink_to(outside)
    assert adapter_version(adapter.parent, "good") is None
    assert adapter_names(adapter.parent) == []


def test_a_link_to_another_adapter_is_one(adapter: Path) -> None:
    (adapter.parent / "latest").symlink_to("good")
    assert adapter_version(adapter.parent, "latest") == adapter_version(adapter.parent, "good")


def test_links_in_a_circle_are_no_adapter(adapter: Path) -> None:
    (adapter.parent / "circle").symlink_to("circle")
    assert adapter_version(adapter.parent, "circle") is None
    assert adapter_names(adapter.parent) == ["good"]


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS])
def test_an_adapter_that_lacks_a_file_is_found_but_not_listed(adapter: Path, missing: str) -> None:
    (adapter / missing).unlink()
    assert None in (adapter_version(adapter.parent, "good") or ())
    assert adapter_names(adapter.parent) == []


def test_without_a_directory_there_are_no_adapters(tmp_path: Path) -> None:
    assert adapter_names(tmp_path / "adapters") == []
    assert adapter_version(tmp_path / "adapters", "good") is None


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_changed_file_is_another_version(adapter: Path, file: str) -> None:
    before = adapter_version(adapter.parent, "good")
    (adapter / file).write_bytes((adapter / file).read_bytes() + b" ")
    assert adapter_version(adapter.parent, "good") != before


# Files


def test_the_files_of_an_adapter_are_all_that_lie_in_it(adapter: Path) -> None:
    (adapter / "README.md").write_text("hello")
    (adapter / ".hidden").write_text("no")
    (adapter / "checkpoint-1").mkdir()
    found = adapter_files(adapter.parent, "good")
    assert found == {name: adapter / name for name in ("README.md", CONFIG, WEIGHTS)}


def test_a_file_that_is_a_link_out_of_the_directory_is_none_of_its_files(adapter: Path) -> None:
    secret = adapter.parent.parent / "secret"
    secret.write_text("no")
    (adapter / "secret.txt").symlink_to(secret)
    assert set(adapter_files(adapter.parent, "good")) == {CONFIG, WEIGHTS}


def test_an_adapter_that_is_removed_is_gone_with_all_its_files(adapter: Path) -> None:
    (adapter / "checkpoint-1").mkdir()
    remove(adapter.parent, "good")
    assert list(adapter.parent.iterdir()) == []


def test_of_a_link_only_the_link_is_removed(adapter: Path) -> None:
    (adapter.parent / "latest").symlink_to("good")
    remove(adapter.parent, "latest")
    assert [place.name for place in adapter.parent.iterdir()] == ["good"]
    assert set(adapter_files(adapter.parent, "good")) == {CONFIG, WEIGHTS}


@pytest.mark.parametrize("name", ["none", "../good", "."])
def test_what_is_no_adapter_has_no_files_and_is_not_removed(adapter: Path, name: str) -> None:
    with pytest.raises(NoSuchObject):
        adapter_files(adapter.parent, name)
    with pytest.raises(NoSuchObject):
        remove(adapter.parent, name)
    assert adapter.is_dir()
