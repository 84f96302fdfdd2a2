"""The strategy for reading weights, by the disk that they are on."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from worker.engine.options.read_ahead import file_system, strategy

GIB = 2**30
MOUNTS = """\
overlay / overlay rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
mfs#master:9421 /runpod-volume fuse rw,nosuid 0 0
/dev/nvme0n1 /runpod-volume/local ext4 rw 0 0
server:/a /my\\040models nfs4 rw 0 0
"""


def vllms(**options: Any) -> Namespace:
    own: dict[str, Any] = {
        "safetensors_load_strategy": None,
        "load_format": "auto",
        "model_loader_extra_config": {},
    }
    return Namespace(**{**own, **options})


def weights(folder: Path, name: str = "model.safetensors", size: int = 1000) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(bytes(size))
    return folder


def mounted(folder: Path, kind: str) -> str:
    return f"overlay / overlay rw 0 0\nthere {folder} {kind} rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/models/m", "overlay"),
        ("/runpod-volume/huggingface-cache/m", "fuse"),
        ("/runpod-volume", "fuse"),
        ("/runpod-volume-2/m", "overlay"),
        ("/runpod-volume/local/m", "ext4"),
        ("/my models/m", "nfs4"),
    ],
)
def test_a_path_lies_on_the_deepest_mount_above_it(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_of_two_mounts_at_one_place_the_later_one_counts() -> None:
    mounts = "/dev/a /data ext4 rw 0 0\nserver:/b /data nfs rw 0 0\n"
    assert file_system(Path("/data/m"), mounts) == "nfs"


@pytest.mark.parametrize("mounts", ["", "odd", "no kind"])
def test_where_mounts_say_nothing_nothing_is_known(mounts: str) -> None:
    assert file_system(Path("/data/m"), mounts) == ""


@pytest.mark.parametrize("kind", ["fuse", "fuse.juicefs", "nfs4", "lustre", "ceph", "virtiofs"])
def test_weights_on_a_network_disk_are_read_ahead(tmp_path: Path, kind: str) -> None:
    folder = weights(tmp_path / "model")
    choice = strategy(vllms(), folder, GIB, mounted(tmp_path, kind))
    assert choice
    assert str(choice) == (
        "SAFETENSORS_LOAD_STRATEGY=prefetch "
        f"(the weights lie on a network disk, {kind}, and fit into memory)"
    )


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs", "fuseblk", "fuse.overlayfs"])
def test_weights_on_a_disk_of_this_machine_are_read_as_vllm_does(tmp_path: Path, kind: str) -> None:
    assert strategy(vllms(), weights(tmp_path / "model"), GIB, mounted(tmp_path, kind)) is None


def test_weights_that_links_lead_to_count_where_they_are(tmp_path: Path) -> None:
    blobs = weights(tmp_path / "blobs", "123")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(blobs / "123")
    assert strategy(vllms(), snapshot, GIB, mounted(blobs, "fuse"))
    assert strategy(vllms(), snapshot, GIB, mounted(snapshot, "fuse")) is None


@pytest.mark.parametrize(("room", "chosen"), [(1000, False), (1249, False), (1250, True)])
def test_weights_are_read_ahead_if_memory_has_room(tmp_path: Path, room: int, chosen: bool) -> None:
    folder = weights(tmp_path / "model", "1.safetensors", 600)
    weights(folder, "2.safetensors", 400)
    choice = strategy(vllms(), folder, room, mounted(tmp_path, "fuse"))
    assert (choice is not None) is chosen


@pytest.mark.parametrize(
    "options",
    [
        {"safetensors_load_strategy": "lazy"},
        {"load_format": "runai_streamer"},
        {"load_format": "fastsafetensors"},
        {"load_format": "dummy"},
        {"model_loader_extra_config": {"enable_multithread_load": True}},
    ],
)
def test_a_strategy_without_effect_or_already_set_is_left_alone(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    mounts = mounted(tmp_path, "fuse")
    folder = weights(tmp_path / "model")
    assert strategy(vllms(), folder, GIB, mounts)
    assert strategy(vllms(**options), folder, GIB, mounts) is None


def test_weights_in_another_format_are_left_alone(tmp_path: Path) -> None:
    folder = weights(tmp_path / "model", "pytorch_model.bin")
    assert strategy(vllms(), folder, GIB, mounted(tmp_path, "fuse")) is None
