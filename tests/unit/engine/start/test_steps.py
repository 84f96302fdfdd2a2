"""Steps of a start: how weights are read, the renderer's threads, and fallbacks."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.settings import engine_arguments, start_on

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, Machine
from worker.engine.options.automatic import MEMORY_OPTION
from worker.engine.run.core import CoreFailed
from worker.engine.start import steps
from worker.engine.start.steps import (
    LOAD_FORMAT,
    MAX_NUM_SEQS,
    RENDERER_NUM_WORKERS,
    file_system_type,
    with_fast_loader,
    with_prefetch_strategy,
    with_renderer_workers,
    without_fast_loader,
)
from worker.engine.start.tables import FALLBACKS, choose_fallback_arguments

GIB = 2**30
GPU = start_on(Machine(cpu=False, gpus=(Gpu("GPU", GIB),)), fast_load=True)
WriteMounts = Callable[[str], None]
LOADERS = ("instanttensor", "fastsafetensors", "runai_model_streamer")
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
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteMounts:
    """Return a function that writes the kernel's table of mounts."""
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
        # The later one of two mounts at the same path counts.
        ("/data/m", "nfs"),
    ],
)
def test_a_path_lies_on_the_deepest_mount_above_it(
    path: str, kind: str, mounts: WriteMounts
) -> None:
    mounts(MOUNTS)
    assert file_system_type(Path(path)) == kind


@pytest.mark.parametrize("table", ["", "odd", "no kind"])
def test_the_file_system_is_unknown_without_a_matching_mount(
    table: str, mounts: WriteMounts
) -> None:
    mounts(table)
    assert file_system_type(Path("/data/m")) == ""


# Reading ahead


ChooseStrategy = Callable[..., str | None]


@pytest.fixture
def choose_strategy(mounts: WriteMounts, monkeypatch: pytest.MonkeyPatch) -> ChooseStrategy:
    """Return a function that chooses the strategy for weights in a folder.

    The folder, or another mount point, is a disk with a file system of this kind.
    """

    def choose(
        folder: Path, kind: str, memory: int = GIB, mount_point: Path | None = None, **options: Any
    ) -> str | None:
        own: dict[str, Any] = {"safetensors_load_strategy": None, "load_format": "auto"}
        vllms = {"model": str(folder), "model_loader_extra_config": {}, **own, **options}
        mounts(f"overlay / overlay rw 0 0\nthere {mount_point or folder} {kind} rw 0 0\n")
        monkeypatch.setattr(steps, "page_cache_capacity", lambda: memory)
        changed = with_prefetch_strategy(EngineArguments(Namespace(**vllms), "org/model"), GPU)
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
    weights: Path, kind: str, choose_strategy: ChooseStrategy
) -> None:
    assert choose_strategy(weights, kind) == (
        "SAFETENSORS_LOAD_STRATEGY=prefetch "
        f"(the weights are on a network disk, {kind}, and fit into memory)"
    )


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs", "fuseblk", "fuse.overlayfs"])
def test_weights_on_a_local_disk_are_not_read_ahead(
    weights: Path, kind: str, choose_strategy: ChooseStrategy
) -> None:
    assert choose_strategy(weights, kind) is None


def test_the_target_of_a_link_determines_the_disk(
    weights: Path, tmp_path: Path, choose_strategy: ChooseStrategy
) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(weights / "1.safetensors")
    assert choose_strategy(snapshot, "fuse") is None
    assert choose_strategy(snapshot, "fuse", mount_point=weights)


@pytest.mark.parametrize(("memory", "is_read_ahead"), [(1000, False), (1249, False), (1250, True)])
def test_weights_are_read_ahead_if_they_fit_into_memory(
    weights: Path, memory: int, is_read_ahead: bool, choose_strategy: ChooseStrategy
) -> None:
    assert bool(choose_strategy(weights, "fuse", memory)) is is_read_ahead


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
def test_no_strategy_is_chosen_if_one_is_set_or_has_no_effect(
    weights: Path, options: dict[str, Any], choose_strategy: ChooseStrategy
) -> None:
    assert choose_strategy(weights, "fuse", **options) is None


def test_weights_in_other_formats_are_not_read_ahead(
    tmp_path: Path, choose_strategy: ChooseStrategy
) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    assert choose_strategy(tmp_path, "fuse") is None


# Fast loading


def fake_packages(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(steps, "find_spec", lambda name: name if name in packages else None)


@pytest.fixture
def model_arguments(
    weights: Path, tmp_path: Path, mounts: WriteMounts, monkeypatch: pytest.MonkeyPatch
) -> EngineArguments:
    fake_packages(monkeypatch, *LOADERS)
    mounts(f"there {tmp_path} ext4 rw 0 0\n")
    options = Namespace(model=str(weights), load_format="auto", pipeline_parallel_size=1)
    return EngineArguments(options, "org/model")


@pytest.mark.parametrize(
    ("disk", "loader"),
    [
        (("ext4", 1, LOADERS), "instanttensor"),
        (("ext4", 1, LOADERS[1:]), "fastsafetensors"),
        (("ext4", 2, LOADERS[1:]), "runai_streamer"),
        (("ext4", 1, ()), "auto"),
        (("fuse.mfs", 1, LOADERS), "runai_streamer"),
        (("nfs4", 1, LOADERS[:2]), "auto"),
    ],
)
def test_the_fastest_installed_loader_for_the_disk_is_chosen(
    model_arguments: EngineArguments,
    tmp_path: Path,
    mounts: WriteMounts,
    monkeypatch: pytest.MonkeyPatch,
    disk: tuple[str, int, tuple[str, ...]],
    loader: str,
) -> None:
    kind, stages, packages = disk
    fake_packages(monkeypatch, *packages)
    mounts(f"there {tmp_path} {kind} rw 0 0\n")
    changed = with_fast_loader(model_arguments.with_options(pipeline_parallel_size=stages), GPU)
    assert changed.vllm_args.load_format == loader
    values = [default.value for default in changed.defaults if default.name == "LOAD_FORMAT"]
    assert values == ([] if loader == "auto" else [loader])
    own = without_fast_loader(changed, RuntimeError())
    assert (own.vllm_args.load_format if own else loader) == "auto"


@pytest.mark.parametrize(
    "name", ["LOAD_FORMAT", "SAFETENSORS_LOAD_STRATEGY", "MODEL_LOADER_EXTRA_CONFIG"]
)
def test_options_of_the_operator_are_not_changed(
    model_arguments: EngineArguments, name: str
) -> None:
    arguments = EngineArguments(model_arguments.vllm_args, "org/model", operator_options={name: ""})
    assert with_fast_loader(arguments, GPU) is arguments
    assert without_fast_loader(arguments, RuntimeError()) is None


def test_no_loader_is_chosen_without_a_gpu_or_fast_load(model_arguments: EngineArguments) -> None:
    assert with_fast_loader(model_arguments, start_on(GPU.machine)) is model_arguments
    assert (
        with_fast_loader(model_arguments, replace(GPU, machine=Machine(cpu=True)))
        is model_arguments
    )


@pytest.mark.parametrize("names", [["pytorch_model.bin"], ["consolidated.safetensors"], []])
def test_no_loader_is_chosen_for_other_formats(
    model_arguments: EngineArguments, tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    other: Any = model_arguments.with_options(model=str(folder))
    assert with_fast_loader(other, GPU) is other


# Threads of the renderer


@pytest.mark.parametrize(
    ("changed", "operator_options", "threads"),
    [
        ({}, (), 2),
        ({"runner_type": "pooling"}, (), 2),
        ({"multimodal_config": "some"}, (), 2),
        ({"runner_type": "pooling", "multimodal_config": "some"}, (), 1),
        ({"skip_tokenizer_init": True}, (), 1),
        ({}, (RENDERER_NUM_WORKERS,), 1),
    ],
)
def test_the_renderer_gets_a_second_thread_if_possible(
    changed: dict[str, Any],
    operator_options: tuple[str, ...],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = {"runner_type": "generate", "multimodal_config": None, "skip_tokenizer_init": False}
    model = SimpleNamespace(**{**defaults, **changed})
    monkeypatch.setattr(steps, "create_model_config", lambda _: model)
    before = EngineArguments(
        Namespace(renderer_num_workers=1), "m", operator_options=dict.fromkeys(operator_options, "")
    )
    after = with_renderer_workers(before, start_on(Machine(cpu=True)))
    assert after.vllm_args.renderer_num_workers == threads
    assert [default.name for default in after.defaults] == [RENDERER_NUM_WORKERS] * (threads - 1)


# Fallbacks for a second core

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
BROKEN_FILE = "RuntimeError: the file is no file of weights"
FAST_LOADER = LOAD_FORMAT, "instanttensor", "it is the fastest"
OTHER_LOADER_MESSAGE, LESS_MEMORY_MESSAGE = FALLBACKS.values()
VLLMS_LOADER = {LOAD_FORMAT: "auto"}
LESS_MEMORY, FEWER_SEQUENCES = {MEMORY_OPTION: "0.855"}, {MAX_NUM_SEQS: "64"}


def configured_engine(
    *operator_options: str, device: str = "cuda", sequences: int = 256, fast: bool = False
) -> EngineArguments:
    arguments = engine_arguments(gpu_memory_utilization=0.95, max_num_seqs=256)
    chosen = arguments.with_chosen_value(*FAST_LOADER) if fast else arguments
    config = SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
    )
    options = dict.fromkeys(operator_options, "")
    return replace(chosen, operator_options=options, config=config)


@pytest.mark.parametrize(
    ("configured", "reason", "message", "defaults"),
    [
        (configured_engine(), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, LESS_MEMORY | FEWER_SEQUENCES),
        (configured_engine(MAX_NUM_SEQS), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, LESS_MEMORY),
        (configured_engine(MEMORY_OPTION), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, FEWER_SEQUENCES),
        (configured_engine(device="cpu"), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, FEWER_SEQUENCES),
        (
            configured_engine(fast=True),
            OUT_OF_MEMORY,
            LESS_MEMORY_MESSAGE,
            VLLMS_LOADER | LESS_MEMORY | FEWER_SEQUENCES,
        ),
        (configured_engine(fast=True), BROKEN_FILE, OTHER_LOADER_MESSAGE, VLLMS_LOADER),
        (
            configured_engine(MEMORY_OPTION, MAX_NUM_SEQS, fast=True),
            OUT_OF_MEMORY,
            OTHER_LOADER_MESSAGE,
            VLLMS_LOADER,
        ),
    ],
)
def test_a_fallback_changes_only_options_that_the_operator_did_not_set(
    configured: EngineArguments, reason: str, message: str, defaults: dict[str, str]
) -> None:
    fallback = choose_fallback_arguments(configured, RuntimeError(reason))
    assert fallback
    arguments, description = fallback
    assert (description, {default.name: default.value for default in arguments.defaults}) == (
        message,
        defaults,
    )
    assert {name: str(getattr(arguments.vllm_args, name.lower())) for name in defaults} == defaults
    assert configured.vllm_args.gpu_memory_utilization == 0.95


@pytest.mark.parametrize(
    ("configured", "reason"),
    [
        (configured_engine(), BROKEN_FILE),
        (configured_engine(MEMORY_OPTION, MAX_NUM_SEQS), OUT_OF_MEMORY),
        (configured_engine(device="cpu", sequences=1), OUT_OF_MEMORY),
    ],
)
def test_there_is_no_fallback_if_no_option_can_be_changed(
    configured: EngineArguments, reason: str
) -> None:
    assert choose_fallback_arguments(configured, RuntimeError(reason)) is None


def test_less_memory_for_the_cache_does_not_help_weights_that_are_too_large() -> None:
    error = CoreFailed(OUT_OF_MEMORY, "initialize_model")
    assert choose_fallback_arguments(configured_engine(), error) is None
