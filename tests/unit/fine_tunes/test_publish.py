"""An adapter appears under its name as a whole, whatever happens meanwhile."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.volume.disks import fill, mounted, remount

from worker.errors import VolumeError
from worker.fine_tunes.publish import checkpoint_name, name_of, publish, release, reserve
from worker.fine_tunes.request import StoredFineTune
from worker.volume.adapters import CONFIG, MADE, NAME, WEIGHTS, adapter_names, maker, remove

ID, OTHER = "ftjob-a", "ftjob-b"
# More than any publication needs.
MOST_STEPS = 200


@pytest.fixture
def trained_adapter(tmp_path: Path) -> Path:
    place = tmp_path / "attempt" / "result"
    place.mkdir(parents=True)
    (place / CONFIG).write_text('{"r": 8, "base_model_name_or_path": "/weights/x"}')
    (place / WEIGHTS).write_bytes(b"x" * 100_000)
    (place / "README.md").write_text("of PEFT's own")
    return place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "adapters"


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize(
    ("base", "suffix", "name"),
    [
        ("demo", None, "demo.231114-221320"),
        ("org/demo-1.5", "mine", "demo-1.5.mine.231114-221320"),
        ("/weights/a model/", "ä/../b", "a-model.-..-b.231114-221320"),
        ("._", None, "model.231114-221320"),
        ("x" * 300, "y" * 64, "x" * 29 + "." + "y" * 64 + ".231114-221320"),
    ],
)
def test_a_name_says_model_suffix_and_time(base: str, suffix: str | None, name: str) -> None:
    rows = "file-a"
    asked = StoredFineTune(
        id=ID, created_at=1_700_000_000, base=base, suffix=suffix, training_file=rows
    )
    assert name_of(asked) == name
    assert NAME.fullmatch(checkpoint_name(f"{name}-99", 10**9))


def test_an_adapter_has_its_files_its_model_and_maker(root: Path, trained_adapter: Path) -> None:
    publish(root, "a", trained_adapter, "org/demo", ID)
    assert (names_in(root), names_in(root / "a")) == (["a"], sorted((CONFIG, WEIGHTS, MADE)))
    config = json.loads((root / "a" / CONFIG).read_text())
    assert config == {"r": 8, "base_model_name_or_path": "org/demo"}
    assert maker(root, "a") == ID
    before = (root / "a").stat().st_ino
    publish(root, "a", trained_adapter, "org/demo", ID)
    assert (root / "a").stat().st_ino == before


def test_a_name_is_given_once_and_no_place_taken_twice(root: Path, trained_adapter: Path) -> None:
    # Again: the worker that had reserved it died.
    assert reserve(root, "a", ID) == reserve(root, "a", ID) == "a"
    assert reserve(root, "a", OTHER) == "a-2"
    publish(root, "a", trained_adapter, "demo", ID)
    release(root, "a")
    assert not (root / ".a").exists()
    assert reserve(root, "a", "ftjob-c") == "a-3"
    with pytest.raises(VolumeError, match="another adapter"):
        publish(root, "a", trained_adapter, "demo", OTHER)
    assert maker(root, "a") == ID
    assert names_in(root) == [".a-2", ".a-3", "a"]
    assert reserve(root, "a", ID) == "a"


@pytest.mark.parametrize("content", ["", "[]", '{"id": 5}', "\udcff"])
def test_a_broken_mark_makes_no_maker(root: Path, trained_adapter: Path, content: str) -> None:
    publish(root, "a", trained_adapter, "demo", ID)
    (root / "a" / MADE).write_text(content, errors="surrogateescape")
    assert maker(root, "a") is None
    remove(root, "a")
    assert maker(root, "a") is None


def killed_after(steps: int, work: Callable[[], None]) -> bool:
    """Do some work in a process that is killed after so many steps; return whether it was."""
    pid = os.fork()
    if not pid:
        left = [steps]

        def count(event: str, _: object) -> None:
            if event.startswith(("open", "os.", "shutil.")):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)

        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_it_may_be_interrupted_between_any_two_steps(tmp_path: Path, trained_adapter: Path) -> None:
    for steps in range(MOST_STEPS):
        root = tmp_path / str(steps)

        def work(root: Path = root) -> None:
            name = reserve(root, "a", ID)
            publish(root, name, trained_adapter, "demo", ID)
            release(root, name)

        was_killed = killed_after(steps, work)
        # It is not there, or whole.
        if (root / "a").exists():
            assert len(names_in(root / "a")) == 3
            assert (root / "a" / WEIGHTS).stat().st_size == 100_000
        work()
        assert (adapter_names(root), maker(root, "a")) == (["a"], ID)
        # What was left half made is gone.
        assert not [*root.glob(".a*")]
        if not was_killed:
            break
    else:
        pytest.fail("it never came to its end")
    assert steps > 10


def test_on_a_full_volume_nothing_appears_or_stays(tmp_path: Path, trained_adapter: Path) -> None:
    with mounted(tmp_path / "disk", 1 << 18) as disk:
        root = disk / "adapters"
        root.mkdir()
        filler = fill(disk, left=50_000)
        with pytest.raises(VolumeError, match="full"):
            publish(root, "a", trained_adapter, "demo", ID)
        assert names_in(root) == []
        filler.unlink()
        publish(root, "a", trained_adapter, "demo", ID)
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="read-only"):
            reserve(root, "b", ID)
