"""The loader that FAST_LOAD chooses, by the machine, the disk and the format of the weights."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, Machine
from worker.engine.options import fast_loader, read_ahead
from worker.engine.options.fast_loader import with_fast_loader, with_own_loader

GPU = Machine(cpu=False, gpus=(Gpu("GPU", 2**30),))
ALL = ("instanttensor", "fastsafetensors", "runai_model_streamer")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineArguments:
    """A model on a local disk, where all loaders are installed."""
    installs(monkeypatch, *ALL)
    disk(tmp_path, monkeypatch, "ext4")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    options = Namespace(model=str(folder), load_format="auto", pipeline_parallel_size=1)
    return EngineArguments(options, "org/model")


def installs(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(fast_loader, "find_spec", lambda name: name if name in packages else None)


def disk(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounts = folder / "mounts"
    mounts.write_text(f"there {folder} {kind} rw 0 0\n")
    monkeypatch.setattr(read_ahead, "MOUNTS", mounts)


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
    model: EngineArguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: tuple[str, int, tuple[str, ...]],
    chosen: str,
) -> None:
    kind, stages, packages = there
    installs(monkeypatch, *packages)
    disk(tmp_path, monkeypatch, kind)
    changed = with_fast_loader(model.with_options(pipeline_parallel_size=stages), GPU)
    assert changed.vllm.load_format == chosen
    named = [default.value for default in changed.defaults if default.name == "LOAD_FORMAT"]
    assert named == ([] if chosen == "auto" else [chosen])
    assert with_own_loader(changed).vllm.load_format == "auto"


@pytest.mark.parametrize(
    "name", ["LOAD_FORMAT", "SAFETENSORS_LOAD_STRATEGY", "MODEL_LOADER_EXTRA_CONFIG"]
)
def test_what_the_operator_chose_stays(model: EngineArguments, name: str) -> None:
    given = EngineArguments(model.vllm, "org/model", given=frozenset({name}))
    assert with_fast_loader(given, GPU) is given
    assert with_own_loader(given) is given


def test_nothing_is_chosen_without_a_gpu(model: EngineArguments) -> None:
    assert with_fast_loader(model, Machine(cpu=True)) is model


@pytest.mark.parametrize("names", [["pytorch_model.bin"], ["consolidated.safetensors"], []])
def test_other_formats_are_left_to_vllm(
    model: EngineArguments, tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    other: Any = model.with_options(model=str(folder))
    assert with_fast_loader(other, GPU) is other
