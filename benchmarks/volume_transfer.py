"""Sends a file to a volume and back over a network that is cut, and counts what went twice.

    python benchmarks/volume_transfer.py [--megabytes 300] [--cuts 10]

The volume's S3 API is moto's server, in a process of its own; the network is a proxy between that
resets a connection whenever another eleventh of the file has passed. Needs the tests' packages.
Exits with 1 if the bytes differ, a cut did not come, or cuts cost more than a part each.
"""

import filecmp
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import bench

sys.path.insert(0, str(bench.ROOT / "tests"))

from support.network import Cutting, cutting
from support.processes.s3_server import VOLUME_ID, S3Server, s3_server

from llm_worker_client.volume.contents import PART
from llm_worker_client.volume.transfers import Volume
from llm_worker_client.volume.upload import AT_ONCE

MB = 1_000_000


def report(way: str, size: int, network: Cutting, took: float) -> None:
    passed = network.up if way == "up" else network.down
    twice = passed - size
    print(
        f"{way:4} {size / MB:,.0f} MB in {took:.1f} s ({size / MB / took:.0f} MB/s), "
        f"{network.cut} cuts, sent twice {twice / MB:.1f} MB ({100 * twice / size:.1f} %)"
    )


def transfer(server: S3Server, network: Cutting, folder: Path, cuts: list[int]) -> bool:
    """Send a file and read it back; return whether all is as it should be."""
    up, down = folder / "up", folder / "down"
    size = up.stat().st_size
    key, secret = server.access_key, server.secret
    with Volume(VOLUME_ID, url=network.url, access_key=key, secret=secret) as volume:
        began = time.perf_counter()
        volume.upload(up, "inbox/up", progress=True)
        report("up", size, network, time.perf_counter() - began)
        met = network.cut == len(cuts) and network.up - size <= (len(cuts) + 1) * PART
        network.cut_at(cuts)
        began = time.perf_counter()
        volume.download("inbox/up", down, progress=True)
        report("down", size, network, time.perf_counter() - began)
        met = met and network.cut == len(cuts) and network.down - size <= (len(cuts) + 1) * PART
    copies = (down, folder / "volume/inbox/up")
    same = all(filecmp.cmp(up, copy, shallow=False) for copy in copies)
    print(f"bytes equal: {same}")
    return met and same


def main() -> int:
    parser = bench.options(__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=10)
    arguments = parser.parse_args()
    print(bench.machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "volume").mkdir()
        with (folder / "up").open("wb") as file:
            for _ in range(arguments.megabytes):
                file.write(os.urandom(MB))
        size = arguments.megabytes * MB
        cuts = [size * turn // (arguments.cuts + 1) for turn in range(1, arguments.cuts + 1)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with s3_server(folder / "volume", folder / "log") as server:
            port = int(server.url.rpartition(":")[2])
            with cutting(port, cuts) as network:
                met = transfer(server, network, folder, cuts)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        print(f"{AT_ONCE} parts of {PART / MB:.1f} MB at once; memory grew by {grown:.0f} MB")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
