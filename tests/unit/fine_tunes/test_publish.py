"""Publishing: an adapter appears under its name only when it is complete, and result files once."""

import csv
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fine_tunes import eval_loss_event, loss_event, write_events
from support.volume import fill, mount_disk, remount

from worker.errors import VolumeError
from worker.fine_tunes.publish import (
    checkpoint_adapter_name,
    metrics_csv,
    preferred_adapter_name,
    publish_adapter,
    release_adapter_name,
    reserve_adapter_name,
    write_result_files,
)
from worker.fine_tunes.record import FineTune, FineTunes, StoredFineTune
from worker.fine_tunes.spec import ATTEMPTS_DIR
from worker.volume.adapters import (
    CONFIG,
    FILES,
    NAME_PATTERN,
    ORIGIN_FILE,
    WEIGHTS,
    adapter_names,
    origin_fine_tune_id,
    remove_adapter,
)

ID, OTHER = "ftjob-a", "ftjob-b"
# More steps than any publication takes.
MAX_STEPS = 200


@pytest.fixture
def trained_adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "attempt" / "result"
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text('{"r": 8, "base_model_name_or_path": "/weights/x"}')
    (directory / WEIGHTS).write_bytes(b"x" * 100_000)
    (directory / "README.md").write_text("of PEFT's own")
    return directory


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
def test_the_name_of_an_adapter_has_model_suffix_and_time(
    base: str, suffix: str | None, name: str
) -> None:
    rows = "file-a"
    request = StoredFineTune(
        id=ID, created_at=1_700_000_000, base=base, suffix=suffix, training_file=rows
    )
    assert preferred_adapter_name(request) == name
    assert NAME_PATTERN.fullmatch(checkpoint_adapter_name(f"{name}-99", 10**9))


def test_the_name_of_an_adapter_ends_with_the_volume_of_its_fine_tune(root: Path) -> None:
    volume = "v" * 20
    request = StoredFineTune(
        id=f"{ID}.vol-{volume}", created_at=1, base="demo", suffix="y" * 64, training_file="file-a"
    )
    name = preferred_adapter_name(request)
    assert name == f"demo.{'y' * 64}.700101-000001.vol-{volume}"
    assert reserve_adapter_name(root, name, ID) == name
    second = reserve_adapter_name(root, name, OTHER)
    assert second == f"demo.{'y' * 64}.700101-000001-2.vol-{volume}"
    checkpoint = checkpoint_adapter_name(second, 10**9)
    assert checkpoint.endswith(f"-2.ckpt-{10**9}.vol-{volume}")
    assert NAME_PATTERN.fullmatch(checkpoint)


def test_a_published_adapter_has_its_files_its_base_model_and_its_origin(
    root: Path, trained_adapter: Path
) -> None:
    publish_adapter(root, "a", trained_adapter, "org/demo", ID)
    assert (names_in(root), names_in(root / "a")) == (["a"], sorted((CONFIG, WEIGHTS, ORIGIN_FILE)))
    config = json.loads((root / "a" / CONFIG).read_text())
    assert config == {"r": 8, "base_model_name_or_path": "org/demo"}
    assert origin_fine_tune_id(root, "a") == ID
    before = (root / "a").stat().st_ino
    publish_adapter(root, "a", trained_adapter, "org/demo", ID)
    assert (root / "a").stat().st_ino == before


def test_a_name_is_reserved_once_and_an_adapter_is_never_replaced(
    root: Path, trained_adapter: Path
) -> None:
    # A worker may repeat the reservation of a dead worker.
    assert reserve_adapter_name(root, "a", ID) == reserve_adapter_name(root, "a", ID) == "a"
    assert reserve_adapter_name(root, "a", OTHER) == "a-2"
    publish_adapter(root, "a", trained_adapter, "demo", ID)
    release_adapter_name(root, "a")
    assert not (root / ".a").exists()
    assert reserve_adapter_name(root, "a", "ftjob-c") == "a-3"
    with pytest.raises(VolumeError, match="another adapter"):
        publish_adapter(root, "a", trained_adapter, "demo", OTHER)
    assert origin_fine_tune_id(root, "a") == ID
    assert names_in(root) == [".a-2", ".a-3", "a"]
    assert reserve_adapter_name(root, "a", ID) == "a"


@pytest.mark.parametrize("content", ["", "[]", '{"id": 5}', "\udcff"])
def test_an_adapter_with_a_broken_origin_file_has_no_origin(
    root: Path, trained_adapter: Path, content: str
) -> None:
    publish_adapter(root, "a", trained_adapter, "demo", ID)
    (root / "a" / ORIGIN_FILE).write_text(content, errors="surrogateescape")
    assert origin_fine_tune_id(root, "a") is None
    remove_adapter(root, "a")
    assert origin_fine_tune_id(root, "a") is None


def kill_after(steps: int, work: Callable[[], None]) -> bool:
    """Run a function in a process that is killed after some steps; return whether it was killed."""
    pid = os.fork()
    if not pid:
        remaining: float = steps

        def count(event: str, _: object) -> None:
            nonlocal remaining
            if event.startswith(("open", "os.", "shutil.")):
                remaining -= 1
                if remaining < 0:
                    signal.raise_signal(signal.SIGKILL)

        sys.addaudithook(count)
        work()
        # A measurement of the coverage writes its data at the exit.
        remaining = math.inf
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_publishing_may_be_interrupted_between_any_two_steps(
    tmp_path: Path, trained_adapter: Path
) -> None:
    for steps in range(MAX_STEPS):
        root = tmp_path / str(steps)

        def work(root: Path = root) -> None:
            name = reserve_adapter_name(root, "a", ID)
            publish_adapter(root, name, trained_adapter, "demo", ID)
            release_adapter_name(root, name)

        was_killed = kill_after(steps, work)
        # The adapter is either missing or complete.
        if (root / "a").exists():
            assert len(names_in(root / "a")) == 3
            assert (root / "a" / WEIGHTS).stat().st_size == 100_000
        work()
        assert (adapter_names(root), origin_fine_tune_id(root, "a")) == (["a"], ID)
        # No partial adapter remains.
        assert not [*root.glob(".a*")]
        if not was_killed:
            break
    else:
        pytest.fail("the publication never finished")
    assert steps > 10


def test_publishing_on_a_full_volume_leaves_nothing(tmp_path: Path, trained_adapter: Path) -> None:
    with mount_disk(tmp_path / "disk", 1 << 18) as disk:
        root = disk / "adapters"
        root.mkdir()
        filler = fill(disk, free=50_000)
        with pytest.raises(VolumeError, match="full"):
            publish_adapter(root, "a", trained_adapter, "demo", ID)
        assert names_in(root) == []
        filler.unlink()
        publish_adapter(root, "a", trained_adapter, "demo", ID)
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="read-only"):
            reserve_adapter_name(root, "b", ID)


# A file beyond the maximum size is left out.
@pytest.mark.parametrize(("size", "names"), [(700_000, FILES), (1_000_001, ())])
def test_the_table_and_the_adapter_are_written_once(
    fine_tunes: FineTunes, fine_tune: FineTune, size: int, names: tuple[str, ...]
) -> None:
    contents = dict(zip(FILES, (b"{}", bytes(size)), strict=True))
    place = fine_tune.directory / ATTEMPTS_DIR / "000001.aa" / "epochs" / "10"
    write_events(fine_tune, [loss_event(5, 3), loss_event(10, 2), eval_loss_event(10, 2.5)])
    place.mkdir(parents=True)
    for name, content in contents.items():
        (place / name).write_bytes(content)
    first = write_result_files(fine_tunes.files, fine_tune, place)
    files = [fine_tunes.files.get(id) for id in first]
    assert [file.filename for file in files] == ["step_metrics.csv", *names]
    assert {file.purpose for file in files} == {"fine-tune-results"}
    table, *others = (fine_tunes.files.content_path(file).read_bytes() for file in files)
    assert table.startswith(b"step,train_loss,valid_loss,")
    assert others == [contents[name] for name in names]
    write_events(fine_tune, [loss_event(20, 1)], "000002.bb", resumed_at=15)
    assert write_result_files(fine_tunes.files, fine_tune, place) == first


def test_the_table_has_a_row_per_step_and_empty_cells_for_missing_metrics() -> None:
    steps = {
        5: {"train_loss": 3.0, "learning_rate": 2e-3},
        10: {"valid_loss": 2.5, "eval_runtime": 1.0},
    }
    assert list(csv.reader(metrics_csv(steps).splitlines())) == [
        ["step", "train_loss", "valid_loss", "learning_rate"],
        ["5", "3.0", "", "0.002"],
        ["10", "", "2.5", ""],
    ]
    assert metrics_csv({}) == "step,train_loss,valid_loss\n"
