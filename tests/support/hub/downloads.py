"""Commands of workers that download a repository, and the state of their volume."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.hub.server import Hub, hub
from support.processes.background import wait_until
from support.processes.commands import HANDLER, HOME, CompletedCommand, run_command
from worker.store import Artifact, ArtifactLocation, Places, UnlocatedArtifact, resolve_on_disk

NAME = "org/model"
# A token that must not appear in any output.
TOKEN = "hf_canary"
PREFETCH = (*HANDLER, "--prefetch")
ANSWER = (*HANDLER, "--test_input", '{"input": {"prompt": "Hi", "stream": true}}')
# Bytes per second: slow enough to act during a download, and so slow that it does not finish.
SLOW_RATE = 300_000
TRICKLE_RATE = 10_000


@contextmanager
def hub_with(source: Path) -> Iterator[Hub]:
    """Run a hub with one repository."""
    with hub() as running:
        running.add(NAME, source)
        yield running


def worker_environ(served: Hub, base: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a worker with a volume."""
    fixed = {"MODEL_NAME": NAME, "BASE_PATH": str(base), "HF_ENDPOINT": served.endpoint}
    return {**HOME, **fixed, **settings}


def cache_directory(base: Path) -> Path:
    return base / "huggingface-cache" / "hub"


def state_directory(base: Path) -> Path:
    """Return the directory with the repository's leases and manifests."""
    return cache_directory(base) / f"models--{NAME.replace('/', '--')}" / ".worker"


def leases(base: Path) -> list[str]:
    return sorted(path.name for path in state_directory(base).glob("lease-*"))


def resolve_repository(
    base: Path, revision: str | None = None
) -> ArtifactLocation | UnlocatedArtifact:
    """Resolve the repository on the volume, as the next worker that starts would."""
    return resolve_on_disk(Artifact(NAME, revision), Places(cache_directory(base)))


def content_hashes(folder: Path) -> dict[str, str]:
    """Return a hash of each file in a directory, by its relative path."""
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def was_sent_once(served: Hub, source: Path) -> bool:
    sizes = {name: (source / name).stat().st_size for name in content_hashes(source)}
    return all(
        (served.bytes_sent(NAME, name), served.max_sends(NAME, name)) == (size, 1)
        for name, size in sizes.items()
    )


def bytes_sent(served: Hub, repository: str = NAME) -> int:
    """Return the number of bytes that the hub has sent of a repository."""
    return sum(
        part.end - part.start for part in served.sent_ranges if part.repository == repository
    )


def repository_size(source: Path) -> int:
    return sum((source / name).stat().st_size for name in content_hashes(source))


def assert_prefetched(served: Hub, source: Path, base: Path, **settings: str) -> CompletedCommand:
    """Check that a prefetch downloads the repository, and leaves no lease."""
    ran = run_command(worker_environ(served, base, **settings), *PREFETCH)
    assert ran.returncode == 0, ran.stderr
    result = resolve_repository(base, settings.get("MODEL_REVISION"))
    assert isinstance(result, ArtifactLocation), result
    assert content_hashes(result.directory) == content_hashes(source)
    assert leases(base) == []
    return ran


def slow_down(served: Hub, source: Path) -> None:
    """Wait until a quarter of the repository has been sent, then slow the hub down to a trickle."""
    served.throttle = SLOW_RATE
    wait_until(lambda: bytes_sent(served) > repository_size(source) / 4)
    served.throttle = TRICKLE_RATE
