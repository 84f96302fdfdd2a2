"""The request log: one line of JSON per request."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, emulator_peer

from emulator import Emulator, Options


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "requests.jsonl"
    file.write_text("of an earlier emulator\n")
    return file


@pytest.fixture
async def peer(log: Path) -> AsyncIterator[Peer]:
    async with emulator_peer(request_log=log, long_poll_s=600) as running:
        yield running


def read_log(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_each_request_is_a_line_with_its_status(peer: Peer, log: Path) -> None:
    start = time.time()
    await peer.request("POST", "/run", data=b'{"input": "\xc3\xbc"}')
    await peer.request("GET", "/status/nope?ttl=5")
    await peer.request("GET", "/control/jobs")
    # A line is written with its response, not only on exit.
    entries = read_log(log)
    keys = ("method", "path", "status", "bytes_in")
    assert [tuple(line[key] for key in keys) for line in entries] == [
        ("POST", "/v2/local/run", 200, 15),
        ("GET", "/v2/local/status/nope?ttl=5", 404, 0),
        ("GET", "/control/jobs", 200, 0),
    ]
    for line in entries:
        assert {*line} == {"at", "ms", "bytes_out", *keys}
        assert start - 60 < line["at"] < time.time() + 60
        assert line["bytes_out"] > 0


async def test_the_duration_of_a_request_ends_with_its_response_or_when_its_caller_hangs_up(
    peer: Peer, log: Path
) -> None:
    (await peer.poll("/job-take/dead")).cancel()
    await poll_until(lambda: '"status": 499' in log.read_text())
    taking = await peer.poll("/job-take/w")
    arrived = time.time()
    peer.advance_clock(600)
    await taking
    line = read_log(log)[1]
    assert line["ms"] >= 600_000
    assert line["at"] < arrived + 60


@pytest.mark.parametrize(
    "fault",
    [
        {"on": "take", "do": "status", "status": 429},
        {"on": "take", "do": "delay", "delay_s": 0.01},
        {"on": "stop", "do": "reset"},
        {"on": "take", "do": "lose"},
    ],
)
async def test_the_fault_that_affected_a_request_is_logged(
    peer: Peer, log: Path, fault: dict[str, Any]
) -> None:
    await peer.run()
    await peer.add_fault(**fault)
    with suppress(ConnectionResetError):
        await peer.request_raw("GET", f"/job-{fault['on']}/w")
    await poll_until(lambda: read_log(log)[-1]["path"].endswith("/w"))
    assert read_log(log)[-1]["fault"] == fault["do"]


async def test_a_log_that_cannot_be_written_prevents_startup(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        await Emulator(Options(request_log=tmp_path)).start()


async def test_an_emulator_that_cannot_bind_its_port_leaves_the_log_unchanged(
    peer: Peer, log: Path
) -> None:
    await peer.get("/health")
    port = int(peer.emulator.root_url.rpartition(":")[2])
    with pytest.raises(OSError, match="address already in use"):
        await Emulator(Options(port=port, request_log=log)).__aenter__()
    assert len(read_log(log)) == 1
