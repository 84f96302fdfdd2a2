"""Uploads and downloads over connections that are cut and by processes that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.network import cutting_proxy
from support.processes.background import HUNG_S
from support.processes.s3_server import S3Server, s3_server
from support.volume import fill, mount_disk
from unit.client.conftest import CLIENT, PART, Mount
from unit.client.volume.conftest import random_file

from llm_worker_client.volume import NoSpace, NoSuchFile, Volume, VolumeError, VolumeNotConfigured
from llm_worker_client.volume.transfers import LocalFileState

CUTS = 10
SIZE = 30 * PART + 777


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of many parts."""
    return random_file(tmp_path / "up", SIZE)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "down"


def port_of(server: S3Server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1])
def test_files_of_sizes_around_the_part_size_are_transferred(
    remote: Volume, tmp_path: Path, size: int
) -> None:
    sent, back = random_file(tmp_path / "a", size), tmp_path / "b"
    remote.upload(sent, "sizes/a b#ä.bin")
    remote.download("sizes/a b#ä.bin", back)
    assert back.read_bytes() == sent.read_bytes()


def test_a_file_that_is_on_the_volume_is_not_sent_again(remote: Volume, file: Path) -> None:
    size = file.stat().st_size
    assert remote.upload(file, "twice").transferred == size
    again = remote.upload(file, "twice")
    assert (again.size, again.transferred, again.existing) == (size, 0, size)
    assert remote.upload(random_file(file, size), "twice").transferred == size


def test_a_cut_connection_costs_at_most_one_part(mount: Mount, source: Path, target: Path) -> None:
    cuts = [SIZE * turn // (CUTS + 1) for turn in range(1, CUTS + 1)]
    with (
        cutting_proxy(port_of(mount.server), cuts) as network,
        mount.open(url=network.url) as remote,
    ):
        sent = remote.upload(source, "cut/a")
        assert network.cut == CUTS
        assert SIZE < network.up < SIZE + CUTS * (PART + 4096) + 200_000
        assert sent.transferred <= SIZE + CUTS * PART
        network.reset_counts(cuts)
        remote.download("cut/a", target)
        assert network.cut == CUTS
        assert network.down < 2 * SIZE
    assert source.read_bytes() == target.read_bytes() == mount.read("cut/a")


TRANSFER = """
import sys
from llm_worker_client.volume import Volume
with Volume(part_size={part}) as volume:
    getattr(volume, sys.argv[1])(*sys.argv[2:])
"""


def run_and_kill(mount: Mount, *command: str | Path) -> None:
    """Run a transfer in its own process and kill it halfway."""
    script = TRANSFER.format(part=PART)
    with cutting_proxy(port_of(mount.server), stall_after=SIZE // 2) as network:
        environ = {**mount.server.environ, "RUNPOD_VOLUME_URL": network.url}
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), **environ}
        process = subprocess.Popen([sys.executable, "-c", script, *command], env=variables)
        assert network.stalled.wait(HUNG_S)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_an_upload_resumes_after_its_process_was_killed(
    mount: Mount, remote: Volume, source: Path
) -> None:
    run_and_kill(mount, "upload", source, "killed/a")
    assert not (mount.directory / "killed/a").exists()
    sent = remote.upload(source, "killed/a")
    assert sent.existing >= SIZE // 4
    assert sent.transferred + sent.existing == sent.size
    assert mount.read("killed/a") == source.read_bytes()


@pytest.mark.slow
def test_parts_of_a_changed_file_are_not_mixed(mount: Mount, remote: Volume, source: Path) -> None:
    content = bytearray(source.read_bytes())
    run_and_kill(mount, "upload", source, "changed/a")
    # First change one byte in every second part, and later the size.
    content[:: 2 * PART] = bytes(len(content[:: 2 * PART]))
    source.write_bytes(content)
    sent = remote.upload(source, "changed/a")
    assert mount.read("changed/a") == content
    assert 0 < sent.existing < sent.size
    run_and_kill(mount, "upload", source, "changed/b")
    source.write_bytes(content[: 2 * PART + 1])
    assert remote.upload(source, "changed/b").existing == 0
    assert mount.read("changed/b") == content[: 2 * PART + 1]


@pytest.mark.slow
def test_a_download_resumes_after_its_process_was_killed(
    mount: Mount, remote: Volume, source: Path, target: Path
) -> None:
    remote.upload(source, "down/a")
    run_and_kill(mount, "download", "down/a", target)
    (part,) = target.parent.glob(".down.*.part")
    assert not target.exists()
    got = part.stat().st_size
    with cutting_proxy(port_of(mount.server)) as network, mount.open(url=network.url) as second:
        second.download("down/a", target)
        assert network.down < SIZE - got + 100_000
    assert target.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == ["down", "up"]


def test_a_download_that_filled_the_disk_succeeds_once_there_is_space(
    remote: Volume, source: Path, tmp_path: Path
) -> None:
    with mount_disk(tmp_path / "disk", 2 * SIZE) as disk:
        remote.upload(source, "full/a")
        filler = fill(disk, SIZE // 2)
        with pytest.raises(NoSpace, match="no space left"):
            remote.download("full/a", disk / "a")
        assert not (disk / "a").exists()
        filler.unlink()
        remote.download("full/a", disk / "a")
        assert (disk / "a").read_bytes() == source.read_bytes()


def test_a_full_volume_is_an_error(tmp_path: Path, file: Path) -> None:
    (tmp_path / "volume").mkdir()
    options = ("--full-after", str(2 * PART))
    with (
        s3_server(tmp_path / "volume", tmp_path / "log", *options) as server,
        Mount(server, tmp_path / "volume").open() as remote,
        pytest.raises(NoSpace, match="volume vol0123456 is full"),
    ):
        remote.upload(file, "a")
    assert not (tmp_path / "volume" / "a").exists()


WRONG = "AKIA-wrong"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"access_key": WRONG}, "does not know the access key|keys are refused"),
        ({"secret": WRONG}, "The secret is not|keys are refused"),
        ({"id": "other"}, "no such volume"),
        ({"url": "http://127.0.0.1:1/"}, "can't be reached: is the data center right"),
    ],
)
def test_errors_contain_no_secrets(
    mount: Mount, file: Path, options: dict[str, str], message: str
) -> None:
    with mount.open(**options) as remote:
        calls: list[Callable[[], object]] = [
            lambda: remote.upload(file, "wrong"),
            lambda: remote.download("a", file),
            lambda: list(remote.list()),
            lambda: remote.delete("a"),
        ]
        for call in calls:
            with pytest.raises(VolumeError, match=message) as raised:
                call()
            for secret in (mount.server.secret_key, mount.server.access_key, WRONG):
                assert secret not in str(raised.value)


def test_missing_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_VOLUME_ID", "vol")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user_a")
    with pytest.raises(
        VolumeNotConfigured, match=r"Set RUNPOD_VOLUME_DATACENTER, AWS_SECRET_ACCESS_KEY:"
    ):
        Volume()
    with pytest.raises(VolumeNotConfigured, match="a name such as EU-RO-1"):
        Volume(datacenter="evil.example.com/", secret="rps_a")


def test_the_platforms_address_follows_from_the_data_center() -> None:
    with Volume("vol", "EU-RO-1", access_key="user_a", secret="rps_a") as remote:
        assert remote._s3.url == "https://s3api-eu-ro-1.runpod.io/"


def test_missing_files_and_invalid_paths_are_errors(remote: Volume, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        remote.download("nowhere", tmp_path / "a")
    with pytest.raises(NoSuchFile):
        remote.delete("nowhere")
    with pytest.raises(VolumeError, match="No such file"):
        remote.upload(tmp_path / "a", "a")
    for key in ("", "/a", "a/../b", "a//b", "a/"):
        with pytest.raises(VolumeError, match="is no path of a file"):
            remote.upload(tmp_path / "a", key)


def test_a_file_has_no_more_parts_than_s3_allows(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(100 * 2**30)
    content = LocalFileState.from_path(tmp_path / "sparse", PART)
    assert (content.part_size, len(content.part_numbers)) == (11 * 2**20, 9310)
    assert LocalFileState.from_path(tmp_path / "sparse", 2**26).part_size == 2**26
