"""Receipts of a real engine under a mixed load, compared with stopwatches of its callers."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from model.conftest import WriteAdapter
from support.processes.background import poll_until
from support.volume import read_receipts

from llm_worker_client.receipts import sum_receipts
from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

CHAT = "/v1/chat/completions"
TEAMS = ("a", "b", "c")
ADAPTERS = ("first", "second")
REQUESTS = 120
CONCURRENCY = 16


class Client:
    """A caller with a stopwatch."""

    def __init__(self, lora_engine: "InProcessEngine", settings: Settings, volume: Path) -> None:
        environ = {"base_path": volume, "receipts": True, "gpu_price_per_second": 0.001}
        self._worker = Worker(Engines(lora_engine), settings.model_copy(update=environ))
        self._volume = volume
        # Seconds of complete requests, by id.
        self.seconds: dict[str, float] = {}
        # Seconds until the first chunk of streams.
        self.first_s: dict[str, float] = {}
        self.slots = asyncio.Semaphore(CONCURRENCY)

    async def ask(self, id: str, *, chunks: float = float("inf"), **payload: Any) -> list[Any]:
        """Run a job; cancel it after some chunks."""
        yields = []
        async with self.slots:
            begin = time.monotonic()
            handle = self._worker.handle({"id": id, "input": payload})
            async for chunk in handle:
                self.first_s.setdefault(id, time.monotonic() - begin)
                yields.append(chunk)
                if len(yields) >= chunks:
                    await handle.aclose()
                    return yields
            self.seconds[id] = time.monotonic() - begin
        return yields

    async def wait_for_receipts(self, count: int) -> dict[str, dict[str, Any]]:
        """Return the receipts on the volume by id, when there are this many."""
        await poll_until(lambda: len(read_receipts(self._volume)) >= count)
        receipts = {receipt["id"]: receipt for receipt in read_receipts(self._volume)}
        assert len(receipts) == count
        return receipts


@pytest.fixture
def client(lora_engine: "InProcessEngine", settings: Settings, tmp_path: Path) -> Client:
    return Client(lora_engine, settings, tmp_path)


def make_job(number: int) -> dict[str, Any]:
    """Return one of five kinds of jobs, for one of three teams and three models."""
    model = (*ADAPTERS, None)[number % 3]
    names = {"user": f"user-{number % 4}", "metadata": {"team": TEAMS[number // 3 % 3]}}
    prompt = f"{number}: tell me about the small worker"
    tokens, messages = 8 + number % 24, [{"role": "user", "content": prompt}]
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0.9, **names}
    body |= {"model": model} if model else {}
    sampling = {"sampling_params": {"max_tokens": tokens, "n": 1 + number % 3}, **names}
    sampling |= {"lora": model} if model else {}
    jobs: list[dict[str, Any]] = [
        {"openai_route": CHAT, "openai_input": {**body, "n": 1 + number % 3}},
        {"openai_route": CHAT, "openai_input": {**body, "stream": True}},
        {"prompt": prompt, "stream": True, **sampling},
        {"messages": messages, **sampling},
        {"prompts": [prompt, "and another one"], **sampling},
    ]
    return jobs[number % len(jobs)]


def check_sums_by_team(root: Path, receipts: Mapping[str, dict[str, Any]]) -> None:
    """Compare the client's sums with the receipts of the teams' requests."""
    days = [date.fromisoformat(day.name) for day in (root / "worker" / "receipts").iterdir()]
    by_team = sum_receipts(root, days, ["label:team"]).groups
    assert by_team.keys() == {("-",), *((team,) for team in TEAMS)}
    for team in TEAMS:
        own = [one for one in receipts.values() if one["labels"]["team"] == team]
        sums = by_team[team,]
        assert (sums.requests, sums.failed) == (len(own), sum(one["status"] > 200 for one in own))
        assert sums.completion_tokens == sum(one["tokens"]["completion"] for one in own)
        assert sums.gpu_seconds == pytest.approx(sum(one["gpu_seconds"] for one in own))


@pytest.mark.slow
async def test_the_shares_of_a_mixed_load_add_up_to_the_time_of_the_engine(
    client: Client, write_adapter: WriteAdapter, tmp_path: Path
) -> None:
    """Requests with several choices, streams, lists, two adapters; every eighth is cancelled."""
    # Only this package imports vLLM, so that it isn't imported when the tests are collected.
    from worker.engine.run.requests.gpu_time import GPU_TIME  # noqa: PLC0415 - see above

    for seed, name in enumerate(ADAPTERS):
        write_adapter(name, seed)
    await client.ask("warm", prompts=["Hi", "Hi"], lora="first")
    await client.ask("warm-2", prompt="Hi", lora="second")
    busy_before, begin = GPU_TIME.busy_s, time.monotonic()
    jobs = {str(number): make_job(number) for number in range(REQUESTS)}
    cancelled = {id for id, job in jobs.items() if "stream" in str(job) and int(id) % 8 == 1}
    await asyncio.gather(
        *(
            client.ask(id, chunks=2 if id in cancelled else float("inf"), **job)
            for id, job in jobs.items()
        )
    )
    wall_s, busy_s = time.monotonic() - begin, GPU_TIME.busy_s - busy_before
    stored = await client.wait_for_receipts(REQUESTS + 2)
    receipts = {id: stored[id] for id in jobs}

    total = sum(receipt["gpu_seconds"] for receipt in receipts.values())
    assert total == pytest.approx(busy_s, rel=0.01)
    # The load has no pause, so that the engine works from its begin to its end.
    assert 0.5 * wall_s < total <= wall_s

    statuses = Counter(receipt["status"] for receipt in receipts.values())
    assert statuses == {200: REQUESTS - len(cancelled), 499: len(cancelled)}
    assert len(cancelled) >= 5
    for id, receipt in receipts.items():
        model = (*ADAPTERS, None)[int(id) % 3]
        assert receipt["model"] == (model or "demo")
        assert receipt["labels"] == {"team": TEAMS[int(id) // 3 % 3]}
        assert receipt["user"] == f"user-{int(id) % 4}"
        assert receipt["cost_usd"] == pytest.approx(receipt["gpu_seconds"] / 1000, abs=1e-8)
    check_sums_by_team(tmp_path, receipts)
    # The stopwatch also measures the path back from the worker to its caller. A busy machine delays
    # some callers, but not most of them.
    errors_ms = [
        abs(1000 * client.seconds[id] - receipts[id]["total_ms"]) for id in jobs.keys() - cancelled
    ]
    assert median(errors_ms) < 50


async def test_the_figures_are_those_that_the_caller_gets(client: Client) -> None:
    begin = time.time()
    (body,) = await client.ask(
        "whole", openai_route=CHAT, receipt=True, openai_input={"messages": "Hi", "n": 3}
    )
    receipt, usage = body["receipt"], body["usage"]
    tokens = receipt["tokens"]
    assert tokens["prompt"] == usage["prompt_tokens"]
    assert tokens["completion"] == usage["completion_tokens"]
    assert begin - 0.01 < receipt["created"] < time.time() + 0.01
    assert receipt["queue_ms"] <= receipt["first_token_ms"] <= receipt["total_ms"]
    # Three choices have the engine for themselves: their shares are all of its time.
    assert 0.5 * receipt["total_ms"] < 1000 * receipt["gpu_seconds"] <= receipt["total_ms"]


async def test_a_stream_reports_its_first_token_as_its_caller_sees_it(client: Client) -> None:
    differences_ms = []
    # A busy machine delays some callers, but not all of them.
    for id in map("stream-{}".format, range(5)):
        yields = await client.ask(id, prompt="Hi", stream=True, receipt=True, max_batch_size=1)
        receipt = yields[-1]["receipt"]
        first_ms, total_ms = 1000 * client.first_s[id], 1000 * client.seconds[id]
        # They are rounded to 0.1 ms.
        assert receipt["first_token_ms"] <= first_ms + 0.1
        assert receipt["total_ms"] <= total_ms + 0.1
        differences_ms.append(
            max(first_ms - receipt["first_token_ms"], total_ms - receipt["total_ms"])
        )
    assert min(differences_ms) < 50


async def test_cached_tokens_of_a_prompt_are_counted(client: Client) -> None:
    cached = []
    for number in range(2):
        yields = await client.ask(f"cached-{number}", prompt="Cached: " * 100, receipt=True)
        cached.append(yields[0]["receipt"]["tokens"]["cached"])
    assert cached[0] == 0
    assert 0 < cached[1] < yields[0]["receipt"]["tokens"]["prompt"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"messages": "Hi"}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
    ],
)
async def test_every_route_that_streams_ends_with_it(
    client: Client, route: str, body: dict[str, Any]
) -> None:
    id = f"route-{route}"
    streamed = {**body, "stream": True, "receipt": True}
    *_, last = await client.ask(id, openai_route=route, openai_input=streamed)
    end = "data: [DONE]\n\n" if "completions" in route else ""
    assert last.endswith(end)
    _, _, event = last.removesuffix(end).rpartition("event: receipt\ndata: ")
    assert json.loads(event)["receipt"]["id"] == id
