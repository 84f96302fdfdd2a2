"""How weights are read, by the disk that they are on: ahead, or by the loader of FAST_LOAD."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Gpu, Machine
from worker.engine.start import loading
from worker.engine.start.loading import (
    file_system,
    with_fast_loader,
    with_load_strategy,
    without_fast_loader,
)

GIB = 2**30
GPU = StartContext(Machine(cpu=False, gpus=(Gpu("GPU", GIB),)), fast_load=True)
Write = Callable[[str], None]
ALL = ("instanttensor", "fastsafetensors", "runai_model_streamer")
MOUNTS = """\
overlay / overlay rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
mfs#master:9421 /runpod-volume fuse rw,nosuid 0 0
/dev/nvme0n1 /runpod-volume/local ext4 rw 0 0
server:/a /my\\040models nfs4 rw 0 0
/dev/a /data ext4 rw 0 0
server:/b /data nfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that sets the text of the kernel's table of mounts."""
    table = tmp_path / "proc" / "self" / "mounts"
    table.parent.mkdir(parents=True)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))

    def write(text: str) -> None:
        table.write_text(text)

    return write


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/models/m", "overlay"),
        ("/runpod-volume/huggingface-cache/m", "fuse"),
        ("/runpod-volume", "fuse"),
        ("/runpod-volume-2/m", "overlay"),
        ("/runpod-volume/local/m", "ext4"),
        ("/my models/m", "nfs4"),
        # Of two mounts at one place the later one counts.
        ("/data/m", "nfs"),
    ],
)
def test_a_path_lies_on_the_deepest_mount_above_it(path: str, kind: str, mounts: Write) -> None:
    mounts(MOUNTS)
    assert file_system(Path(path)) == kind


@pytest.mark.parametrize("table", ["", "odd", "no kind"])
def test_where_mounts_say_nothing_nothing_is_known(table: str, mounts: Write) -> None:
    mounts(table)
    assert file_system(Path("/data/m")) == ""


# Ahead


Choose = Callable[..., str | None]


@pytest.fixture
def strategy_for(mounts: Write, monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Return a function that chooses for weights of a folder, where it, or a place, is a disk."""

    def choose(
        folder: Path, kind: str, room: int = GIB, place: Path | None = None, **options: Any
    ) -> str | None:
        own: dict[str, Any] = {"safetensors_load_strategy": None, "load_format": "auto"}
        vllms = {"model": str(folder), "model_loader_extra_config": {}, **own, **options}
        mounts(f"overlay / overlay rw 0 0\nthere {place or folder} {kind} rw 0 0\n")
        monkeypatch.setattr(loading, "available_memory", lambda: room)
        changed = with_load_strategy(EngineArguments(Namespace(**vllms), "org/model"), GPU)
        return str(changed.defaults[0]) if changed.defaults else None

    return choose


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "1.safetensors").write_bytes(bytes(600))
    (folder / "2.safetensors").write_bytes(bytes(400))
    return folder


@pytest.mark.parametrize("kind", ["fuse", "fuse.juicefs", "nfs4", "lustre", "ceph", "virtiofs"])
def test_weights_on_a_network_disk_are_read_ahead(
    weights: Path, kind: str, strategy_for: Choose
) -> None:
    assert strategy_for(weights, kind) == (
        "SAFETENSORS_LOAD_STRATEGY=prefetch "
        f"(the weights lie on a network disk, {kind}, and fit into memory)"
    )


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs", "fuseblk", "fuse.overlayfs"])
def test_weights_on_a_disk_of_this_machine_are_read_as_vllm_does(
    weights: Path, kind: str, strategy_for: Choose
) -> None:
    assert strategy_for(weights, kind) is None


def test_weights_that_links_lead_to_count_where_they_are(
    weights: Path, tmp_path: Path, strategy_for: Choose
) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(weights / "1.safetensors")
    assert strategy_for(snapshot, "fuse") is None
    assert strategy_for(snapshot, "fuse", place=weights)


@pytest.mark.parametrize(("room", "ahead"), [(1000, False), (1249, False), (1250, True)])
def test_weights_are_read_ahead_if_memory_has_room(
    weights: Path, room: int, ahead: bool, strategy_for: Choose
) -> None:
    assert bool(strategy_for(weights, "fuse", room)) is ahead


@pytest.mark.parametrize(
    "options",
    [
        {"safetensors_load_strategy": "lazy"},
        {"load_format": "runai_streamer"},
        {"load_format": "dummy"},
        {"model_loader_extra_config": {"enable_multithread_load": True}},
    ],
    ids=str,
)
def test_a_strategy_is_left_alone_if_set_or_idle(
    weights: Path, options: dict[str, Any], strategy_for: Choose
) -> None:
    assert strategy_for(weights, "fuse", **options) is None


def test_weights_in_another_format_are_read_as_vllm_does(
    tmp_path: Path, strategy_for: Choose
) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    assert strategy_for(tmp_path, "fuse") is None


# Fast


def installs(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: name if name in packages else None)


@pytest.fixture
def weighed_model(
    weights: Path, tmp_path: Path, mounts: Write, monkeypatch: pytest.MonkeyPatch
) -> EngineArguments:
    installs(monkeypatch, *ALL)
    mounts(f"there {tmp_path} ext4 rw 0 0\n")
    options = Namespace(model=str(weights), load_format="auto", pipeline_parallel_size=1)
    return EngineArguments(options, "org/model")


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (("ext4", 1, ALL), "instanttensor"),
        (("ext4", 1, ALL[1:]), "fastsafetensors"),
        (("ext4", 2, ALL[1:]), "runai_streamer"),
        (("ext4", 1, ()), "auto"),
        (("fuse.mfs", 1, ALL), "runai_streamer"),
        (("nfs4", 1, ALL[:2]), "auto"),
    ],
)
def test_the_fastest_loader_that_is_installed_and_fits_the_disk_is_chosen(
    weighed_model: EngineArguments,
    tmp_path: Path,
    mounts: Write,
    monkeypatch: pytest.MonkeyPatch,
    there: tuple[str, int, tuple[str, ...]],
    chosen: str,
) -> None:
    kind, stages, packages = there
    installs(monkeypatch, *packages)
    mounts(f"there {tmp_path} {kind} rw 0 0\n")
    changed = with_fast_loader(weighed_model.with_options(pipeline_parallel_size=stages), GPU)
    assert changed.vllm.load_format == chosen
    named = [default.value for default in changed.defaults if default.name == "LOAD_FORMAT"]
    assert named == ([] if chosen == "auto" else [chosen])
    own = without_fast_loader(changed)
    assert (own.vllm.load_format if own else chosen) == "auto"


@pytest.mark.parametrize(
    "name", ["LOAD_FORMAT", "SAFETENSORS_LOAD_STRATEGY", "MODEL_LOADER_EXTRA_CONFIG"]
)
def test_what_the_operator_chose_stays(weighed_model: EngineArguments, name: str) -> None:
    given = EngineArguments(weighed_model.vllm, "org/model", given={name: ""})
    assert with_fast_loader(given, GPU) is given
    assert without_fast_loader(given) is None


def test_nothing_is_chosen_without_a_gpu_or_fast_load(weighed_model: EngineArguments) -> None:
    assert with_fast_loader(weighed_model, replace(GPU, fast_load=False)) is weighed_model
    assert with_fast_loader(weighed_model, replace(GPU, machine=Machine(cpu=True))) is weighed_model


@pytest.mark.parametrize("names", [["pytorch_model.bin"], ["consolidated.safetensors"], []])
def test_other_formats_are_vllms(
    weighed_model: EngineArguments, tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    other: Any = weighed_model.with_options(model=str(folder))
    assert with_fast_loader(other, GPU) is other
