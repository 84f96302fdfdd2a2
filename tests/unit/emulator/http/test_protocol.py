"""Replays recorded requests of the real SDK: the emulator answers as in the recording.

tests/platform/test_sdk_protocol.py checks that the SDK still sends them.
"""

import json
from typing import Any

import aiohttp
import pytest
from support import ROOT

from emulator import Emulator, Options

RECORDINGS = sorted((ROOT / "tests" / "platform" / "recordings").glob("*.json"))
SCENARIOS = [
    pytest.param(exchanges, id=f"{path.stem}-{scenario}")
    for path in RECORDINGS
    for scenario, exchanges in json.loads(path.read_text()).items()
]
ENDS = {"streams": "COMPLETED", "fails": "FAILED", "hangs": "CANCELLED"}

Exchange = dict[str, Any]


def shape(answer: Any) -> Any:
    """Return the answer with every value replaced by its type, except for `input`."""
    if isinstance(answer, dict):
        return {k: v if k == "input" else shape(v) for k, v in answer.items()}
    return [shape(item) for item in answer] if isinstance(answer, list) else type(answer)


async def replay(
    session: aiohttp.ClientSession, url: str, exchange: Exchange, ids: dict[str, str]
) -> Any:
    path = "/".join(ids.get(part, part) for part in exchange["path"].split("/"))
    query = exchange["query"] | ({"batch_size": "8"} if "batch_size" in exchange["query"] else {})
    headers = {"Content-Type": exchange["content_type"]} if exchange["content_type"] else {}
    body = json.dumps(exchange["body"], ensure_ascii=False) if exchange["body"] else None
    async with session.request(
        exchange["method"], url + path, params=query, data=body, headers=headers
    ) as answer:
        assert answer.status == (204 if exchange["answer"] is None else 200)
        return None if answer.status == 204 else await answer.json()


@pytest.mark.parametrize("exchanges", SCENARIOS)
async def test_the_emulator_answers_recorded_requests_as_recorded(
    session: aiohttp.ClientSession, exchanges: list[Exchange]
) -> None:
    async with Emulator(Options(long_poll_s=0.02)) as emulator:
        taken = exchanges[0]["answer"]
        taken = taken if isinstance(taken, list) else [taken]
        jobs = {job["id"]: emulator.queue.submit({"input": job["input"]}) for job in taken}
        ids = {name: job.id for name, job in jobs.items()}
        for exchange in exchanges:
            if exchange["answer"] and "jobsToStop" in exchange["answer"]:
                emulator.queue.cancel(jobs["hangs"])
            answer = await replay(session, emulator.url, exchange, ids)
            assert shape(answer) == shape(exchange["answer"])
    assert {name: job.status.value for name, job in jobs.items()} == {
        name: ENDS[name] for name in jobs
    }
    assert jobs["streams"].output == jobs["streams"].input["yields"]


def test_there_is_a_recording() -> None:
    assert SCENARIOS
