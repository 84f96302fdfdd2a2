"""Replays recorded requests of the real SDK: the emulator answers as in the recording.

tests/platform/test_sdk_protocol.py checks that the SDK still sends them.
"""

import json
from typing import Any

import aiohttp
import pytest
from support import ROOT

from emulator import Emulator, Job, Options

RECORDINGS = sorted((ROOT / "tests" / "platform" / "recordings").glob("*.json"))

Exchange = dict[str, Any]


def shape(answer: Any) -> Any:
    """Return the answer with every value replaced by its type, except for `input`."""
    if isinstance(answer, dict):
        return {k: v if k == "input" else shape(v) for k, v in answer.items()}
    return [shape(item) for item in answer] if isinstance(answer, list) else type(answer)


def submit_recorded_jobs(emulator: Emulator, exchanges: list[Exchange]) -> dict[str, Job]:
    """Queue the jobs of the recorded take; return them by their recorded ids."""
    taken = exchanges[0]["answer"]
    return {
        job["id"]: emulator.queue.submit({"input": job["input"]})
        for job in (taken if isinstance(taken, list) else [taken])
    }


async def replay(
    http: aiohttp.ClientSession, url: str, exchange: Exchange, jobs: dict[str, Job]
) -> Any:
    path = "/".join(jobs[part].id if part in jobs else part for part in exchange["path"].split("/"))
    query = {**exchange["query"]}
    if "batch_size" in query:
        query["batch_size"] = "8"
    headers = {"Content-Type": exchange["content_type"]} if exchange["content_type"] else {}
    body = json.dumps(exchange["body"], ensure_ascii=False) if exchange["body"] else None
    async with http.request(
        exchange["method"], url + path, params=query, data=body, headers=headers
    ) as answer:
        assert answer.status == (204 if exchange["answer"] is None else 200)
        return None if answer.status == 204 else await answer.json()


@pytest.mark.parametrize(
    "exchanges",
    [
        pytest.param(exchanges, id=f"{path.stem}-{scenario}")
        for path in RECORDINGS
        for scenario, exchanges in json.loads(path.read_text()).items()
    ],
)
async def test_the_emulator_answers_the_recorded_sdk_as_the_recording_says(
    exchanges: list[Exchange],
) -> None:
    async with Emulator(Options(take_poll_s=0.02)) as emulator, aiohttp.ClientSession() as http:
        jobs = submit_recorded_jobs(emulator, exchanges)
        for exchange in exchanges:
            if exchange["answer"] and "jobsToStop" in exchange["answer"]:
                emulator.queue.cancel(jobs["hangs"])
            answer = await replay(http, emulator.url, exchange, jobs)
            assert shape(answer) == shape(exchange["answer"])
    ended = {name: job.status.value for name, job in jobs.items()}
    expected = {"streams": "COMPLETED", "fails": "FAILED", "hangs": "CANCELLED"}
    assert ended == {name: expected[name] for name in jobs}
    assert jobs["streams"].output == jobs["streams"].input["yields"]


def test_there_is_a_recording() -> None:
    assert RECORDINGS
