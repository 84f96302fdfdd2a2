"""Workers that download: commands as processes of their own, and what they leave on a volume."""

import hashlib
import json
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from support.hub.server import Hub, hub
from support.processes.background import Background, wait_until, with_variable
from support.processes.commands import HANDLER, HOME, Ran, run
from worker.store import Found, NotFound, Places, Wanted, resolve
from worker.store.files import INDEX

NAME = "org/model"
# A token that no output may show.
TOKEN = "hf_canary"
PREFETCH = (*HANDLER, "--prefetch")
ANSWER = (*HANDLER, "--test_input", '{"input": {"prompt": "Hi", "stream": true}}')
# Bytes per second: slow enough to act in the middle of a download, and to keep it there.
SLOWLY = 300_000
HARDLY = 10_000


def repository(folder: Path, demo: Path, shards: int = 3, size: int = 700_000) -> Path:
    """Create a repository: the demo model's files, with random weights."""
    shutil.copytree(demo, folder, ignore=shutil.ignore_patterns("model.safetensors", "recipe.*"))
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    for number, name in enumerate(names):
        header = json.dumps({name: tensor}).encode()
        content = Random(number).randbytes(size)
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header + content)
    (folder / INDEX).write_text(json.dumps({"weight_map": {name: name for name in names}}))
    return folder


@contextmanager
def hub_with(source: Path) -> Iterator[Hub]:
    """Run a hub with one repository."""
    with hub() as running:
        running.add(NAME, source)
        yield running


def environ(served: Hub, base: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a worker with a volume."""
    fixed = {"MODEL_NAME": NAME, "BASE_PATH": str(base), "HF_ENDPOINT": served.endpoint}
    return {**HOME, **fixed, **settings}


def cache(base: Path) -> Path:
    return base / "huggingface-cache" / "hub"


def state(base: Path) -> Path:
    """Return the folder of the repository's leases and manifests."""
    return cache(base) / f"models--{NAME.replace('/', '--')}" / ".worker"


def leases(base: Path) -> list[str]:
    return sorted(path.name for path in state(base).glob("lease-*"))


def found(base: Path, revision: str | None = None) -> Found | NotFound:
    """Resolve the repository on the volume, as the next worker to start would."""
    return resolve(Wanted(NAME, revision), Places(cache(base)))


def contents(folder: Path) -> dict[str, str]:
    """Return a hash of each file in a directory, by its relative path."""
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def sent_once(served: Hub, source: Path) -> bool:
    sizes = {name: (source / name).stat().st_size for name in contents(source)}
    return all(
        (served.transferred(NAME, name), served.most_often(NAME, name)) == (size, 1)
        for name, size in sizes.items()
    )


def sent(served: Hub, repository: str = NAME) -> int:
    """Return the number of bytes sent of a repository."""
    return sum(part.end - part.start for part in served.sent if part.repository == repository)


def size(source: Path) -> int:
    return sum((source / name).stat().st_size for name in contents(source))


def assert_prefetched(served: Hub, source: Path, base: Path, **settings: str) -> Ran:
    """Check that a prefetch downloads the repository, and leaves no lease."""
    ran = run(environ(served, base, **settings), *PREFETCH)
    assert ran.returncode == 0, ran.stderr
    result = found(base, settings.get("MODEL_REVISION"))
    assert isinstance(result, Found), result
    assert contents(result.place) == contents(source)
    assert leases(base) == []
    return ran


def hold(served: Hub, source: Path) -> None:
    """Wait until a quarter of the repository has been sent; send hardly anything from then on."""
    served.throttle = SLOWLY
    wait_until(lambda: sent(served) > size(source) / 4)
    served.throttle = HARDLY


def assert_ends(worker: Background, base: Path) -> None:
    """Check that SIGTERM ends a worker, whatever it downloads, and that nothing is left of it."""
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended() == 128 + signal.SIGTERM, worker.output
    assert "Traceback" not in worker.output
    assert leases(base) == []
    assert with_variable("BASE_PATH", str(base)) == []
