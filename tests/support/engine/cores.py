"""Cores without processes, a clock, and a healer that runs on them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from support.processes.background import HUNG_S, poll_until
from worker.engine.run.healing import Healer


class FakeClock:
    """A clock that advances by a tenth of a second each time it is read, and only then."""

    now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.1
        return self.now

    async def wait(self, seconds: float) -> None:
        """Wait until the clock has been read often enough for these seconds to pass."""
        end = self.now + seconds
        await poll_until(lambda: self.now > end)


CLOCK = FakeClock()


@dataclass
class FakeCore:
    """A core that has requests, and dies on demand."""

    crashes: bool = True
    is_dead: bool = False
    is_paused: bool = False
    is_compiling: bool = False
    unfinished_requests: list[Any] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    handler: "asyncio.Task[Any] | None" = None
    prompt_limit: int = 100
    device: str = "cpu"
    # An attempt to use the core raises an error.
    is_unusable: bool = False
    # Processor time per second of the clock; 1 is one busy processor.
    cpu_share: float = 0
    initial_process_count: int = 1
    # Reading of the clock.
    killed_at: float = 0

    @property
    def cpu_time_s(self) -> float:
        return 1 + self.cpu_share * CLOCK.now

    def __post_init__(self) -> None:
        self.heartbeat = SimpleNamespace(last_at=0.0)
        core = self

        class CoreClient:
            output_handler = core.handler
            vllm_config = SimpleNamespace(
                scheduler_config=SimpleNamespace(max_num_batched_tokens=core.prompt_limit),
                device_config=SimpleNamespace(device_type=core.device),
            )
            output_processor = SimpleNamespace(
                has_unfinished_requests=lambda: bool(core.unfinished_requests)
            )

            @property
            def errored(self) -> bool:
                return core.is_dead

        self.client = CoreClient()

    def prefilling_request_ids(self, until: float) -> set[str]:
        return {
            request.external_req_id for request in self.unfinished_requests if request.is_prefilling
        }

    @property
    def decoding_request_ids(self) -> set[str]:
        return {
            request.external_req_id for request in self.unfinished_requests
        } - self.prefilling_request_ids(0)

    @property
    def is_idle(self) -> bool:
        return not self.unfinished_requests

    def has_crashed(self) -> bool:
        return self.crashes

    def add(self, id_: str, *, new: bool = False, prompt_len: int = 1) -> "FakeCore":
        self.unfinished_requests.append(
            SimpleNamespace(external_req_id=id_, is_prefilling=new, prompt_len=prompt_len)
        )
        return self

    def die(self) -> None:
        self.is_dead = True

    def kill(self) -> None:
        self.calls.append("killed")
        self.killed_at = CLOCK.now
        self.die()

    async def fail_calls_and_close(self) -> str:
        self.calls.append("removed")
        return "ValueError: broken"


@asynccontextmanager
async def run_healer(
    first: FakeCore, *others: FakeCore | Exception, restarts: int = 2, hang_s: float = 0
) -> AsyncIterator[tuple[Healer, list[Any]]]:
    """Run a healer that starts the other cores one after the other; list the cores that it uses."""
    queue, used = list(others), []

    def start() -> Any:
        following = queue.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    async def use(core: Any) -> None:
        if core.is_unusable:
            raise ValueError("no such adapter")
        used.append(core)

    core: Any = first
    healer = Healer("demo", core, start, use, max_restarts=restarts, hang_s=hang_s)
    running = asyncio.create_task(healer.run())
    async with asyncio.timeout(HUNG_S):
        yield healer, used
    running.cancel()
    await asyncio.wait([running])


async def settle() -> None:
    """Run all tasks that wait neither for time nor for another process."""
    for _ in range(20):
        await asyncio.sleep(0)
