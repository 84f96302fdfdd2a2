"""Measures how much of the reading of weights is hidden behind the import of vLLM.

    python benchmarks/read_ahead.py [--rounds 10] [--gb 4] [--mb-per-s 800] [--json FILE]

The weights are on a separate loop device. The kernel throttles its reads for the processes of a
separate control group (version 1, blkio), which needs root. A side is the worker's own startup up
to the creation of an engine, in a new process, followed by the loader's work: copying all weights
out of a mapping. The sides alternate: with and without the child that reads ahead, and with a cold
and with a warm page cache. The result of the cold sides is the time saved, relative to the shorter
of import and reading.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bench

BLKIO = Path("/sys/fs/cgroup/blkio")
THROTTLE = "blkio.throttle.read_bps_device"
TENSOR = 1 << 28
SIDES = [(cold, ahead) for cold in (True, False) for ahead in (False, True)]


def run_side_here(group: Path, reads_ahead: bool) -> None:
    """Run startup and loading in this process; print the seconds of both as JSON."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    started_at = time.monotonic()
    from worker.engine.start import Start  # noqa: PLC0415 - its import is measured
    from worker.engine.start.ahead import ReadAhead  # noqa: PLC0415 - its import is measured

    if not reads_ahead:
        ReadAhead.start = lambda _: None  # type: ignore[method-assign,assignment]  # does nothing
    from worker.settings.environment import environ_with_secrets  # noqa: PLC0415 - its import is measured
    from worker.settings.sources import gather_settings  # noqa: PLC0415 - its import is measured

    start = Start.read(gather_settings(environ_with_secrets()))
    start.prepare(offline=True)
    prepared_at = time.monotonic()
    import torch  # noqa: PLC0415 - vLLM has imported it
    from safetensors import safe_open  # noqa: PLC0415 - as for torch

    buffer = torch.empty(TENSOR, dtype=torch.uint8)
    for file in sorted(Path(start.main_arguments.vllm_args.model).glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping, though it has keys
                buffer.copy_(weights.get_tensor(name))
    loaded_at = time.monotonic()
    start.read_ahead.close()
    print(json.dumps({"start": prepared_at - started_at, "load": loaded_at - prepared_at}))


def drop_from_cache(files: Sequence[Path]) -> None:
    """Remove files from the page cache."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_side(group: Path, model: Path, reads_ahead: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", str(group), *["--ahead"] * reads_ahead]
    environ = {**os.environ, "MODEL_NAME": str(model), "VLLM_CPU_KVCACHE_SPACE": "1"}
    process = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    seconds: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return seconds


@contextmanager
def mount_throttled(size: int, bytes_per_s: int) -> Iterator[tuple[Path, Path]]:
    """Yield a folder on a loop device, and the control group for which reads are slow."""
    with tempfile.TemporaryDirectory() as scratch:
        image, folder = Path(scratch, "image"), Path(scratch, "mounted")
        folder.mkdir()
        with image.open("wb") as opened:
            opened.truncate(size)
        attach = ["losetup", "--find", "--show", str(image)]
        device = subprocess.run(attach, stdout=subprocess.PIPE, text=True, check=True)
        loop = device.stdout.strip()
        group = BLKIO / f"read-ahead-{os.getpid()}"
        group.mkdir()
        try:
            subprocess.run(["mkfs.ext4", "-q", loop], check=True)
            subprocess.run(["mount", loop, str(folder)], check=True)
            number = Path(loop).stat().st_rdev
            limit = f"{os.major(number)}:{os.minor(number)} {bytes_per_s}"
            (group / THROTTLE).write_text(limit)
            yield folder, group
        finally:
            subprocess.run(["umount", str(folder)], check=False)
            subprocess.run(["losetup", "--detach", loop], check=False)
            group.rmdir()


def make_model(model: Path, size: int) -> list[Path]:
    """Create a model with the demo model's configuration and ``size`` bytes of random weights."""
    ignored = shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(bench.DEMO_MODEL, model, ignore=ignored)
    tensors = size // TENSOR
    files = [model / f"model-{n + 1:05}-of-{tensors:05}.safetensors" for n in range(tensors)]
    tensor = {"dtype": "U8", "shape": [TENSOR], "data_offsets": [0, TENSOR]}
    header = json.dumps({"a": tensor}).encode()
    for file in files:
        with file.open("wb") as opened:
            opened.write(len(header).to_bytes(8, "little") + header)
            for _ in range(16):
                opened.write(os.urandom(TENSOR // 16))
            os.fsync(opened.fileno())
    return files


def measure(rounds: int, size: int, bytes_per_s: int) -> list[dict[str, dict[str, float]]]:
    """Return the seconds of each side, for each round."""
    results = []
    with mount_throttled(size + (1 << 30), bytes_per_s) as (folder, group):
        model = folder / "model"
        files = make_model(model, size)
        # This run isn't measured; it fills the page cache with the imported modules.
        run_side(group, model, reads_ahead=True)
        for number in range(rounds):
            seconds = {}
            for cold, ahead in SIDES:
                if cold:
                    drop_from_cache(files)
                name = f"{'cold' if cold else 'warm'} {'ahead' if ahead else 'plain'}"
                seconds[name] = run_side(group, model, ahead)
                took = ", ".join(f"{part} {value:.2f} s" for part, value in seconds[name].items())
                print(f"round {number + 1}  {name}: {took}", flush=True)
            results.append(seconds)
    return results


def report(results: Sequence[dict[str, dict[str, float]]]) -> None:
    """Print the medians, and the hidden share of the reading over the rounds."""
    total = [{name: sum(times.values()) for name, times in seconds.items()} for seconds in results]
    for name in total[0]:
        print(f"{name}: {statistics.median(sums[name] for sums in total):.2f} s")
    hidden = [
        (sums["cold plain"] - sums["cold ahead"]) / min(seconds["cold plain"].values())
        for seconds, sums in zip(results, total, strict=True)
    ]
    print(f"hidden: {statistics.median(hidden):.0%} ({min(hidden):.0%} to {max(hidden):.0%})")
    slowdowns = [sums["warm ahead"] / sums["warm plain"] for sums in total]
    print(f"warm, ahead / plain: {statistics.median(slowdowns):.3f}")


def main() -> None:
    parser = bench.options(__doc__, 10, writes_json=True)
    parser.add_argument("--gb", type=int, default=4)
    parser.add_argument("--mb-per-s", type=int, default=800)
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run_side_here(args.side, args.ahead)
        return
    # With this handler, a terminated run unmounts its device.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(bench.machine())
    results = measure(args.rounds, args.gb << 30, args.mb_per_s * 1_000_000)
    report(results)
    bench.write_json(args.json, results)


if __name__ == "__main__":
    main()
