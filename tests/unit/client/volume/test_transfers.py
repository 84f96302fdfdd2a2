"""Files to the volume and back, over connections that are cut, and by processes that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT
from support.network import cutting
from support.processes.background import HUNG_S
from support.processes.s3_server import S3Server, s3_server
from support.volume.disks import fill, mounted
from unit.client.volume.conftest import PART, Mount, random_file

from llm_worker_client.volume import NoSpace, NotSet, NotThere, Volume, VolumeError
from llm_worker_client.volume.contents import Content

CUTS = 10
SIZE = 30 * PART + 777


@pytest.fixture
def up(tmp_path: Path) -> Path:
    """Return a file of many parts."""
    return random_file(tmp_path / "up", SIZE)


@pytest.fixture
def down(tmp_path: Path) -> Path:
    return tmp_path / "down"


def port_of(server: S3Server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1])
def test_sizes_around_those_of_parts(remote: Volume, tmp_path: Path, size: int) -> None:
    sent, back = random_file(tmp_path / "a", size), tmp_path / "b"
    remote.upload(sent, "sizes/a b#ä.bin")
    remote.download("sizes/a b#ä.bin", back)
    assert back.read_bytes() == sent.read_bytes()


def test_what_is_on_the_volume_is_not_sent_again(remote: Volume, file: Path) -> None:
    size = file.stat().st_size
    assert remote.upload(file, "twice").moved == size
    again = remote.upload(file, "twice")
    assert (again.size, again.moved, again.found) == (size, 0, size)
    assert remote.upload(random_file(file, size), "twice").moved == size


def test_a_cut_connection_costs_the_part_on_its_way(mount: Mount, up: Path, down: Path) -> None:
    apart = [SIZE * turn // (CUTS + 1) for turn in range(1, CUTS + 1)]
    with cutting(port_of(mount.server), apart) as network, mount.open(url=network.url) as remote:
        sent = remote.upload(up, "cut/a")
        assert network.cut == CUTS
        assert SIZE < network.up < SIZE + CUTS * (PART + 4096) + 200_000
        assert sent.moved <= SIZE + CUTS * PART
        network.cut_at(apart)
        remote.download("cut/a", down)
        assert network.cut == CUTS
        assert network.down < 2 * SIZE
    assert up.read_bytes() == down.read_bytes() == mount.read("cut/a")


KILLED = """
import sys
from llm_worker_client.volume import Volume
with Volume(part_size={part}) as volume:
    getattr(volume, sys.argv[1])(*sys.argv[2:])
"""


def killed(mount: Mount, *command: str | Path) -> None:
    """Run a transfer in a process of its own, and kill it in the middle."""
    script = KILLED.format(part=PART)
    with cutting(port_of(mount.server), held_at=SIZE // 2) as network:
        environ = {**mount.server.environ, "RUNPOD_VOLUME_URL": network.url}
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), **environ}
        process = subprocess.Popen([sys.executable, "-c", script, *command], env=variables)
        assert network.holds.wait(HUNG_S)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_an_upload_goes_on_after_its_process_died(mount: Mount, remote: Volume, up: Path) -> None:
    killed(mount, "upload", up, "killed/a")
    assert not (mount.directory / "killed/a").exists()
    sent = remote.upload(up, "killed/a")
    assert sent.found >= SIZE // 4
    assert sent.moved + sent.found == sent.size
    assert mount.read("killed/a") == up.read_bytes()


def test_parts_of_a_changed_file_are_not_mixed(mount: Mount, remote: Volume, up: Path) -> None:
    content = bytearray(up.read_bytes())
    killed(mount, "upload", up, "changed/a")
    # One byte of each part but the last, at first, and then another size.
    content[:: 2 * PART] = bytes(len(content[:: 2 * PART]))
    up.write_bytes(content)
    sent = remote.upload(up, "changed/a")
    assert mount.read("changed/a") == content
    assert 0 < sent.found < sent.size
    killed(mount, "upload", up, "changed/b")
    up.write_bytes(content[: 2 * PART + 1])
    assert remote.upload(up, "changed/b").found == 0
    assert mount.read("changed/b") == content[: 2 * PART + 1]


def test_a_download_goes_on_after_its_process_was_killed(
    mount: Mount, remote: Volume, up: Path, down: Path
) -> None:
    remote.upload(up, "down/a")
    killed(mount, "download", "down/a", down)
    (part,) = down.parent.glob(".down.*.part")
    assert not down.exists()
    got = part.stat().st_size
    with cutting(port_of(mount.server)) as network, mount.open(url=network.url) as second:
        second.download("down/a", down)
        assert network.down < SIZE - got + 100_000
    assert down.read_bytes() == up.read_bytes()
    assert sorted(path.name for path in down.parent.iterdir()) == ["down", "up"]


def test_a_full_disk_keeps_what_has_come(remote: Volume, up: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 2 * SIZE) as disk:
        remote.upload(up, "full/a")
        filler = fill(disk, SIZE // 2)
        with pytest.raises(NoSpace, match="no space left"):
            remote.download("full/a", disk / "a")
        assert not (disk / "a").exists()
        filler.unlink()
        remote.download("full/a", disk / "a")
        assert (disk / "a").read_bytes() == up.read_bytes()


def test_a_full_volume_is_told(tmp_path: Path, file: Path) -> None:
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
    ("given", "message"),
    [
        ({"access_key": WRONG}, "does not know the access key|keys are refused"),
        ({"secret": WRONG}, "The secret is not|keys are refused"),
        ({"id": "other"}, "no such volume"),
        ({"url": "http://127.0.0.1:1/"}, "can't be reached: is the data center right"),
    ],
)
def test_what_is_wrong_is_told_without_secrets(
    mount: Mount, file: Path, given: dict[str, str], message: str
) -> None:
    with mount.open(**given) as remote:
        calls: list[Callable[[], object]] = [
            lambda: remote.upload(file, "wrong"),
            lambda: remote.download("a", file),
            lambda: list(remote.list()),
            lambda: remote.delete("a"),
        ]
        for call in calls:
            with pytest.raises(VolumeError, match=message) as told:
                call()
            for secret in (mount.server.secret, mount.server.access_key, WRONG):
                assert secret not in str(told.value)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_VOLUME_ID", "vol")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user_a")
    with pytest.raises(NotSet, match=r"Set RUNPOD_VOLUME_DATACENTER, AWS_SECRET_ACCESS_KEY:"):
        Volume()
    with pytest.raises(NotSet, match="a name such as EU-RO-1"):
        Volume(datacenter="evil.example.com/", secret="rps_a")


def test_the_platforms_address_is_that_of_the_data_center() -> None:
    with Volume("vol", "EU-RO-1", access_key="user_a", secret="rps_a") as remote:
        assert remote._s3.url == "https://s3api-eu-ro-1.runpod.io/"


def test_files_that_are_not_there(remote: Volume, tmp_path: Path) -> None:
    with pytest.raises(NotThere):
        remote.download("nowhere", tmp_path / "a")
    with pytest.raises(NotThere):
        remote.delete("nowhere")
    with pytest.raises(VolumeError, match="No such file"):
        remote.upload(tmp_path / "a", "a")
    for key in ("", "/a", "a/../b", "a//b", "a/"):
        with pytest.raises(VolumeError, match="is no path of a file"):
            remote.upload(tmp_path / "a", key)


def test_a_file_has_no_more_parts_than_s3_takes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(100 * 2**30)
    content = Content.of(tmp_path / "sparse", PART)
    assert (content.part_size, len(content.parts)) == (11 * 2**20, 9310)
    assert Content.of(tmp_path / "sparse", 2**26).part_size == 2**26
