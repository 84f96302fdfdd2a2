"""An emulator and its peers: callers, workers and webhooks."""

import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from support.processes.emulator_peer import Peer, emulator_peer


@pytest.fixture
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    """Run an emulator with the options of ``with_options``; yield its peer."""
    async with emulator_peer(**getattr(request, "param", {})) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@dataclass
class Signals:
    """A stand-in for a worker's process; it records the signals that it is sent."""

    pid: int = 0
    sent: list[signal.Signals] = field(default_factory=list)

    def send_signal(self, number: signal.Signals) -> None:
        self.sent.append(number)


@pytest.fixture
def signals(peer: Peer) -> list[signal.Signals]:
    """Return the signals that worker w is sent."""
    peer.worker.process = process = Signals()
    return process.sent
