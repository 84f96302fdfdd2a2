"""Measures the start of a worker that downloads its model while it imports vLLM.

    python benchmarks/download.py [--rounds 3] [--model .models/demo]

The time to the first token should be max(download, import), plus the start of the engine. The hub
is on loopback; a limit on its bytes per second makes the download as long as half an import, one
import, and two. The repository is the model, and a file that is downloaded but not read.

Import and engine start are measured with the same worker on a volume that was filled before, with
the hub up and down. The kinds of starts alternate; the medians' ratios count, not the seconds.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.hub.server import Hub, hub  # noqa: E402 - found by the line above

NAME = "org/model"
HANDLER = (sys.executable, "-u", "src/handler.py")
ANSWER = (*HANDLER, "--test_input", '{"input": {"prompt": "Hi", "stream": true}}')
# Downloaded for its suffix; no model has a file of this name.
PADDING = "padding.json"
PADDING_BYTES = 20_000_000
# Lengths of downloads, as multiples of an import's time.
LENGTHS = (0.5, 1.0, 2.0)
LIMIT_S = 180
IMPORT = re.compile(r"start-up: import +([0-9.]+) s")


@dataclass(frozen=True)
class Boot:
    """Seconds from a process's start to its first token, and those that the import took."""

    first_token: float
    import_: float


def boot(served: Hub, base: Path, vllm_cache: Path) -> Boot:
    """Start a worker on a volume and wait for its first token."""
    environ = {
        **os.environ,
        "MODEL_NAME": NAME,
        "BASE_PATH": str(base),
        "HF_ENDPOINT": served.endpoint,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CACHE_ROOT": str(vllm_cache),
    }
    with tempfile.TemporaryFile("w+") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            ANSWER, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=log
        )
        assert process.stdout
        answered = process.stdout.readline()
        took = time.monotonic() - begun
        process.communicate(timeout=LIMIT_S)
        log.seek(0)
        text = log.read()
        assert answered.startswith(b"{"), text
        found = IMPORT.search(text)
        assert found, text
        return Boot(took, float(found[1]))


@contextmanager
def repository(model: Path) -> Iterator[tuple[Hub, int]]:
    """Serve a model and the padding; yield the hub and the bytes that a worker downloads."""
    with tempfile.TemporaryDirectory() as folder, hub() as served:
        files = Path(folder) / "files"
        shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.sha256"))
        (files / PADDING).write_bytes(Random(0).randbytes(PADDING_BYTES))
        served.add(NAME, files)
        yield served, sum(path.stat().st_size for path in files.iterdir())


class Sides:
    """The kinds of starts that are compared.

    Args:
        served: the hub.
        size: bytes of the repository.
        folder: where volumes are created.
    """

    def __init__(self, served: Hub, size: int, folder: Path) -> None:
        self._served = served
        self._size = size
        self._folder = folder
        self._filled = folder / "filled"
        self._filled.mkdir()
        self._numbers = iter(range(1000))

    def filled(self, status: int | None = None) -> Boot:
        """Start from a filled volume. The hub would answer with the status, if one is given."""
        self._served.clear()
        self._served.throttle, self._served.status = None, status
        measured = boot(self._served, self._filled, self._folder / "vllm")
        self._served.status = None
        return measured

    def empty(self, download_s: float) -> Boot:
        """Start from an empty volume, with a hub that takes so long to send everything."""
        base = self._folder / str(next(self._numbers))
        base.mkdir()
        self._served.throttle = self._size / download_s
        measured = boot(self._served, base, self._folder / "vllm")
        shutil.rmtree(base)
        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, default=ROOT / ".models" / "demo")
    args = parser.parse_args()
    with repository(args.model) as (served, size), tempfile.TemporaryDirectory() as folder:
        sides = Sides(served, size, Path(folder))
        # Fills the volume, the page cache and vLLM's own caches.
        sides.filled()
        import_s = sides.filled().import_
        lengths = {f"{length:g} x import": length * import_s for length in LENGTHS}
        up, down = [], []
        empty: dict[str, list[Boot]] = {name: [] for name in lengths}
        for number in range(args.rounds):
            up.append(sides.filled())
            down.append(sides.filled(503))
            assert not served.requests
            for name, seconds in lengths.items():
                empty[name].append(sides.empty(seconds))
            print(f"round {number + 1} of {args.rounds}", flush=True)
    report(up, down, empty, lengths)


def report(
    up: list[Boot], down: list[Boot], empty: dict[str, list[Boot]], lengths: dict[str, float]
) -> None:
    """Print the medians, also of ratios within a round."""
    print(f"import           {median(start.import_ for start in up):6.2f} s")
    print(f"engine and token {median(map(engine, up)):6.2f} s")
    second = median(start.first_token for start in up)
    gone = median(start.first_token for start in down)
    print(f"from a volume, hub up       {second:6.2f} s")
    print(f"from a volume, hub down     {gone:6.2f} s  {gone / second:.2f} x hub up")
    for name, boots in empty.items():
        took = median(start.first_token for start in boots)
        ideal = against(1, lengths[name], boots, up)
        allowed = against(1.1, lengths[name], boots, up)
        print(f"download of {name:13} {took:6.2f} s  {ideal:.2f} x max(download, import) + engine")
        print(f"{'':32}  {allowed:.2f} x 1.1 max(download, import) + engine")
        print(f"{'':32}  a second boot takes {second / took:.2f} x as long")


def against(factor: float, download_s: float, boots: list[Boot], up: list[Boot]) -> float:
    """Return the median ratio of starts to factor * max(download, import) + engine."""
    return median(
        one.first_token / (factor * max(download_s, other.import_) + engine(other))
        for one, other in zip(boots, up, strict=True)
    )


def engine(boot: Boot) -> float:
    return boot.first_token - boot.import_


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
