"""Measures how much of reading weights is hidden behind the import of vLLM.

    python benchmarks/read_ahead.py [--rounds 10] [--gb 4] [--mb-per-s 800] [--json FILE]

The weights lie on a loop device of its own, whose reads the kernel throttles for the processes of
a control group of its own (version 1, blkio): this needs root. A side is the worker's own start up
to where it would make an engine, in a new process, then what the loader does: all weights, copied
out of a mapping. With and without the child that reads ahead; from a cold page cache, and from a
warm one, by turns. Of the cold sides: the seconds saved, over the lesser of import and reading.
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


def side(group: Path, reads_ahead: bool) -> None:
    """Start, then load; print the seconds of both as JSON. In a process of its own."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    begun = time.monotonic()
    from worker.engine import start  # noqa: PLC0415 - its import is measured
    from worker.engine.start.ahead import ReadAhead  # noqa: PLC0415 - likewise

    if not reads_ahead:
        ReadAhead.of = lambda _: None  # type: ignore[method-assign,assignment]  # begins nothing
    from worker.settings.environment import given_environ  # noqa: PLC0415 - likewise
    from worker.settings.sources import gather  # noqa: PLC0415 - likewise

    found = start.ready(gather(given_environ()), offline=True)
    started = time.monotonic()
    import torch  # noqa: PLC0415 - vLLM has imported it
    from safetensors import safe_open  # noqa: PLC0415 - likewise

    place = torch.empty(TENSOR, dtype=torch.uint8)
    for file in sorted(Path(found.arguments.vllm.model).glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping, though it has keys
                place.copy_(weights.get_tensor(name))
    loaded = time.monotonic()
    found.read_ahead.close()
    print(json.dumps({"start": started - begun, "load": loaded - started}))


def drop(files: Sequence[Path]) -> None:
    """Take files out of the page cache."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_side(group: Path, model: Path, reads_ahead: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", str(group), *["--ahead"] * reads_ahead]
    environ = {**os.environ, "MODEL_NAME": str(model), "VLLM_CPU_KVCACHE_SPACE": "1"}
    ended = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    seconds: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


@contextmanager
def throttled(size: int, bytes_per_s: int) -> Iterator[tuple[Path, Path]]:
    """Yield a folder on a loop device, and the control group that reads it slowly."""
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


def make(model: Path, size: int) -> list[Path]:
    """Make a model with the demo model's configuration and so many bytes of random weights."""
    ignored = shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(bench.DEMO_MODEL, model, ignore=ignored)
    tensors = size // TENSOR
    files = [model / f"model-{n + 1:05}-of-{tensors:05}.safetensors" for n in range(tensors)]
    described = {"dtype": "U8", "shape": [TENSOR], "data_offsets": [0, TENSOR]}
    header = json.dumps({"a": described}).encode()
    for file in files:
        with file.open("wb") as opened:
            opened.write(len(header).to_bytes(8, "little") + header)
            for _ in range(16):
                opened.write(os.urandom(TENSOR // 16))
            os.fsync(opened.fileno())
    return files


def measure(rounds: int, size: int, bytes_per_s: int) -> list[dict[str, dict[str, float]]]:
    """Return the seconds of each side, by rounds."""
    found = []
    with throttled(size + (1 << 30), bytes_per_s) as (folder, group):
        model = folder / "model"
        files = make(model, size)
        # Not measured: it fills the page cache with what is imported.
        run_side(group, model, reads_ahead=True)
        for number in range(rounds):
            seconds = {}
            for cold, ahead in SIDES:
                if cold:
                    drop(files)
                name = f"{'cold' if cold else 'warm'} {'ahead' if ahead else 'plain'}"
                seconds[name] = run_side(group, model, ahead)
                took = ", ".join(f"{part} {value:.2f} s" for part, value in seconds[name].items())
                print(f"round {number + 1}  {name}: {took}", flush=True)
            found.append(seconds)
    return found


def report(found: Sequence[dict[str, dict[str, float]]]) -> None:
    """Print the medians and what is hidden, round by round and in the median."""
    total = [{name: sum(side.values()) for name, side in seconds.items()} for seconds in found]
    for name in total[0]:
        print(f"{name}: {statistics.median(one[name] for one in total):.2f} s")
    hidden = [
        (sums["cold plain"] - sums["cold ahead"]) / min(seconds["cold plain"].values())
        for seconds, sums in zip(found, total, strict=True)
    ]
    print(f"hidden: {statistics.median(hidden):.0%} ({min(hidden):.0%} to {max(hidden):.0%})")
    lost = [sums["warm ahead"] / sums["warm plain"] for sums in total]
    print(f"warm, ahead / plain: {statistics.median(lost):.3f}")


def main() -> None:
    parser = bench.options(__doc__, 10, keeps=True)
    parser.add_argument("--gb", type=int, default=4)
    parser.add_argument("--mb-per-s", type=int, default=800)
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side(args.side, args.ahead)
        return
    # An ended run unmounts, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(bench.machine())
    found = measure(args.rounds, args.gb << 30, args.mb_per_s * 1_000_000)
    report(found)
    bench.keep(args.json, found)


if __name__ == "__main__":
    main()
