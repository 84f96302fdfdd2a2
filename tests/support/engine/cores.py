"""Cores that are no processes, a clock, and a healer that runs on them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from support.processes.background import HUNG_S, eventually
from worker.engine.run.healing.healer import Healer


class Clock:
    """Moves on by a tenth of a second with every look at it, and in no other way."""

    now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.1
        return self.now

    async def pass_by(self, seconds: float) -> None:
        """Wait until somebody has looked at it so often."""
        end = self.now + seconds
        await eventually(lambda: self.now > end)


CLOCK = Clock()


@dataclass
class FakeCore:
    """Has requests, and dies when it is asked to."""

    crashes: bool = True
    is_dead: bool = False
    stopped: bool = False
    builds: bool = False
    requests: list[Any] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    handler: "asyncio.Task[Any] | None" = None
    prompt_limit: int = 100
    device: str = "cpu"
    # Nothing can be built on it.
    unusable: bool = False
    # Of a processor, that it uses: 1 is all of one.
    share: float = 0
    processes: int = 1
    # By the clock.
    killed_at: float = 0

    @property
    def processor_s(self) -> float:
        return 1 + self.share * CLOCK.now

    def __post_init__(self) -> None:
        self.heartbeat = SimpleNamespace(at=0.0)
        core = self

        class Client:
            output_handler = core.handler
            vllm_config = SimpleNamespace(
                scheduler_config=SimpleNamespace(max_num_batched_tokens=core.prompt_limit),
                device_config=SimpleNamespace(device_type=core.device),
            )
            output_processor = SimpleNamespace(has_unfinished_requests=lambda: bool(core.requests))

            @property
            def errored(self) -> bool:
                return core.is_dead

        self.client = Client()

    def newcomers(self, until: float) -> set[str]:
        return {request.external_req_id for request in self.requests if request.is_prefilling}

    @property
    def running(self) -> set[str]:
        return {request.external_req_id for request in self.requests} - self.newcomers(0)

    @property
    def idle(self) -> bool:
        return not self.requests

    def crashed(self) -> bool:
        return self.crashes

    def add(self, id_: str, *, new: bool = False, prompt_len: int = 1) -> "FakeCore":
        self.requests.append(
            SimpleNamespace(external_req_id=id_, is_prefilling=new, prompt_len=prompt_len)
        )
        return self

    def die(self) -> None:
        self.is_dead = True

    def kill(self) -> None:
        self.happened.append("killed")
        self.killed_at = CLOCK.now
        self.die()

    async def remove(self) -> str:
        self.happened.append("removed")
        return "ValueError: broken"


@asynccontextmanager
async def healing(
    first: FakeCore, *others: FakeCore | Exception, restarts: int = 2, hang_s: float = 0
) -> AsyncIterator[tuple[Healer, list[Any]]]:
    """Run a healer; the cores that it starts are the others, and it lists those that it uses."""
    queue, used = list(others), []

    def start() -> Any:
        following = queue.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    async def use(core: Any) -> None:
        if core.unusable:
            raise ValueError("no such adapter")
        used.append(core)

    core: Any = first
    healer = Healer("demo", core, start, use, restarts=restarts, hang_s=hang_s)
    running = asyncio.create_task(healer.run())
    async with asyncio.timeout(HUNG_S):
        yield healer, used
    running.cancel()
    await asyncio.wait([running])


async def settle() -> None:
    """Let everything go on that waits for no time and no other process."""
    for _ in range(20):
        await asyncio.sleep(0)
