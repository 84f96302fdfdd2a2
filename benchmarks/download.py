"""Measures the startup of a worker that downloads its model while it imports vLLM.

    python benchmarks/download.py [--rounds 3] [--model .models/demo]

The time to the first token should be max(download, import), plus the startup of the engine. The hub
is on loopback; with a limited rate, the download takes half as long as an import, as long, and
twice as long. The repository contains the model, and a file that is downloaded but not read.

Import and engine startup are measured with the same worker on a filled volume, with the hub up and
down. The kinds of startups alternate; the ratios of the medians count, not the seconds.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import bench

sys.path.insert(0, str(bench.ROOT / "tests"))

from support.hub.server import Hub, hub

NAME = "org/model"
HANDLER = (sys.executable, "-u", "src/handler.py")
ANSWER = (*HANDLER, "--test_input", '{"input": {"prompt": "Hi", "stream": true}}')
# The file is downloaded because of its suffix; no model has a file with this name.
PADDING = "padding.json"
PADDING_BYTES = 20_000_000
# Durations of downloads, as multiples of the duration of an import.
LENGTHS = (0.5, 1.0, 2.0)
LIMIT_S = 180
IMPORT = re.compile(r"start-up: import +([0-9.]+) s")


@dataclass(frozen=True)
class Startup:
    """Seconds from the start of a process to its first token, and those of the import."""

    first_s: float
    import_s: float

    @property
    def engine_s(self) -> float:
        return self.first_s - self.import_s


def measure_startup(server: Hub, base: Path, vllm_cache: Path) -> Startup:
    """Start a worker on a volume and wait for its first token."""
    environ = {
        **os.environ,
        "MODEL_NAME": NAME,
        "BASE_PATH": str(base),
        "HF_ENDPOINT": server.endpoint,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CACHE_ROOT": str(vllm_cache),
    }
    with tempfile.TemporaryFile("w+") as log:
        started_at = time.monotonic()
        process = subprocess.Popen(
            ANSWER, cwd=bench.ROOT, env=environ, stdout=subprocess.PIPE, stderr=log
        )
        assert process.stdout
        first_line = process.stdout.readline()
        seconds = time.monotonic() - started_at
        process.communicate(timeout=LIMIT_S)
        log.seek(0)
        text = log.read()
        assert first_line.startswith(b"{"), text
        match = IMPORT.search(text)
        assert match, text
        return Startup(seconds, float(match[1]))


@contextmanager
def repository(model: Path) -> Iterator[tuple[Hub, int]]:
    """Serve a model and the padding; yield the hub and the bytes that a worker downloads."""
    with tempfile.TemporaryDirectory() as folder, hub() as server:
        files = Path(folder) / "files"
        shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.sha256"))
        (files / PADDING).write_bytes(Random(0).randbytes(PADDING_BYTES))
        server.add(NAME, files)
        yield server, sum(path.stat().st_size for path in files.iterdir())


def main() -> None:
    parser = bench.options(__doc__)
    parser.add_argument("--model", type=Path, default=bench.DEMO_MODEL)
    args = parser.parse_args()
    with repository(args.model) as (server, size), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        filled = folder / "filled"
        filled.mkdir()

        def start_filled(status: int | None = None) -> Startup:
            """Start on a filled volume, with a hub that would answer with this status."""
            server.clear()
            server.throttle, server.status = None, status
            return measure_startup(server, filled, folder / "vllm")

        # This fills the volume, the page cache and vLLM's own caches.
        start_filled()
        import_s = start_filled().import_s
        lengths = {f"{length:g} x import": length * import_s for length in LENGTHS}
        up, down = [], []
        empty: dict[str, list[Startup]] = {name: [] for name in lengths}
        for number in range(args.rounds):
            up.append(start_filled())
            down.append(start_filled(503))
            assert not server.requests
            server.status = None
            for name, download_s in lengths.items():
                server.throttle = size / download_s
                with tempfile.TemporaryDirectory(dir=folder) as volume:
                    empty[name].append(measure_startup(server, Path(volume), folder / "vllm"))
            print(f"round {number + 1} of {args.rounds}", flush=True)
    report(up, down, empty, lengths)


def report(
    up: list[Startup],
    down: list[Startup],
    empty: dict[str, list[Startup]],
    lengths: dict[str, float],
) -> None:
    """Print the medians, also of ratios within a round."""
    print(f"import           {median(start.import_s for start in up):6.2f} s")
    print(f"engine and token {median(start.engine_s for start in up):6.2f} s")
    hub_up_s = median(start.first_s for start in up)
    hub_down_s = median(start.first_s for start in down)
    print(f"from a volume, hub up       {hub_up_s:6.2f} s")
    print(f"from a volume, hub down     {hub_down_s:6.2f} s  {hub_down_s / hub_up_s:.2f} x hub up")
    for name, startups in empty.items():
        seconds = median(start.first_s for start in startups)
        ideal, allowed = (
            median(
                start.first_s / (factor * max(lengths[name], filled.import_s) + filled.engine_s)
                for start, filled in zip(startups, up, strict=True)
            )
            for factor in (1, 1.1)
        )
        print(
            f"download of {name:13} {seconds:6.2f} s  {ideal:.2f} x max(download, import) + engine"
        )
        print(f"{'':32}  {allowed:.2f} x 1.1 max(download, import) + engine")
        print(f"{'':32}  a second boot takes {hub_up_s / seconds:.2f} x as long")


if __name__ == "__main__":
    main()
