"""Transfers a file to a volume and back over a network with cuts, and counts resent bytes.

    python benchmarks/volume_transfer.py [--megabytes 300] [--cuts 10]

The volume's S3 API is moto's server in a separate process. The network is a proxy that resets the
connection each time another eleventh of the file has passed. Needs the packages of the tests. The
exit status is 1 if the bytes differ, a cut did not happen, or the cuts cost more than one part
each.
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

from support.network import CuttingProxy, cutting_proxy
from support.processes.s3_server import VOLUME_ID, S3Server, s3_server

from llm_worker_client.volume.transfers import CONCURRENT_PARTS, DEFAULT_PART_SIZE, Volume

MB = 1_000_000


def report(direction: str, size: int, network: CuttingProxy, seconds: float) -> None:
    transferred = network.up if direction == "up" else network.down
    resent = transferred - size
    print(
        f"{direction:4} {size / MB:,.0f} MB in {seconds:.1f} s ({size / MB / seconds:.0f} MB/s), "
        f"{network.cut} cuts, sent twice {resent / MB:.1f} MB ({100 * resent / size:.1f} %)"
    )


def transfer(server: S3Server, network: CuttingProxy, folder: Path, cuts: list[int]) -> bool:
    """Upload and download a file; return whether bytes, cuts and resent parts are as expected."""
    up, down = folder / "up", folder / "down"
    size = up.stat().st_size
    key, secret = server.access_key, server.secret_key
    with Volume(VOLUME_ID, url=network.url, access_key=key, secret=secret) as volume:
        began = time.perf_counter()
        volume.upload(up, "inbox/up", progress=True)
        report("up", size, network, time.perf_counter() - began)
        is_met = (
            network.cut == len(cuts) and network.up - size <= (len(cuts) + 1) * DEFAULT_PART_SIZE
        )
        network.reset_counts(cuts)
        began = time.perf_counter()
        volume.download("inbox/up", down, progress=True)
        report("down", size, network, time.perf_counter() - began)
        is_met = (
            is_met
            and network.cut == len(cuts)
            and network.down - size <= (len(cuts) + 1) * DEFAULT_PART_SIZE
        )
    copies = (down, folder / "volume/inbox/up")
    is_equal = all(filecmp.cmp(up, copy, shallow=False) for copy in copies)
    print(f"bytes equal: {is_equal}")
    return is_met and is_equal


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
            with cutting_proxy(port, cuts) as network:
                is_met = transfer(server, network, folder, cuts)
        growth_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        print(
            f"{CONCURRENT_PARTS} parts of {DEFAULT_PART_SIZE / MB:.1f} MB at once; "
            f"memory grew by {growth_mb:.0f} MB"
        )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
