"""The receipt in the answer of a job that requests one."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import (
    HANG,
    PROMPT_TOKENS,
    SECONDS_PER_TOKEN,
    ScriptedEngine,
    Step,
    chat_job,
    failure,
    raw_job,
    tokens,
    worker,
    yields_of,
)
from support.processes.background import poll_until
from support.volume import read_receipts

from worker.errors import EngineDead
from worker.record import engine_use

WORDS = tokens("a", "b", "c")
COUNTS = {"prompt": PROMPT_TOKENS, "cached": 0, "completion": len(WORDS)}
LISTS = {"prompts": ["Hi", "Hi"], "receipt": True}


async def run(payload: Any, *script: Step, **environ: str) -> list[Any]:
    with ScriptedEngine(*(script or WORDS)) as engine:
        return await yields_of(engine, payload, **environ)


def check(receipt: dict[str, Any], route: str, requests: int = 1) -> None:
    assert (receipt["id"], receipt["route"], receipt["status"]) == ("job-1", route, 200)
    assert receipt["tokens"] == {name: count * requests for name, count in COUNTS.items()}
    assert receipt["gpu_seconds"] == requests * len(WORDS) * SECONDS_PER_TOKEN


async def test_a_raw_answer_has_it_in_its_only_yield() -> None:
    (chunk,) = await run(raw_job(stream=False, receipt=True))
    check(chunk["receipt"], "raw")
    assert chunk["choices"][0]["tokens"] == ["abc"]


@pytest.mark.parametrize("largest", [1, 2, 50])
async def test_a_raw_stream_has_it_in_its_last_yield(largest: int) -> None:
    """If the last token was sent before the end was known, one more yield has no token."""
    yields = await run(raw_job(stream=True, receipt=True, max_batch_size=largest, min_batch_size=0))
    *others, last = yields
    assert all("receipt" not in chunk for chunk in others)
    check(last["receipt"], "raw")
    usage = {"input": PROMPT_TOKENS, "output": len(WORDS)}
    assert last["usage"] == usage
    texts = [text for chunk in yields for text in chunk["choices"][0]["tokens"]]
    assert texts == ["a", "b", "c"]
    assert [chunk["choices"][0].get("finish_reason") for chunk in yields].count("stop") == 1


async def test_an_openai_answer_has_it_among_its_keys() -> None:
    (body,) = await run(chat_job(stream=False, receipt=True))
    check(body["receipt"], "/v1/chat/completions")
    assert body["choices"]


async def test_a_client_of_the_gateway_requests_it_in_the_body() -> None:
    job = chat_job(stream=False)
    job["openai_input"] |= {"receipt": True, "user": "alice", "metadata": {"team": "a"}}
    with ScriptedEngine(*WORDS) as engine:
        (body,) = await yields_of(engine, job, STRICT_REQUESTS="1")
        (request,) = engine.requests
    assert isinstance(request, dict)
    assert "receipt" not in request
    assert (body["receipt"]["user"], body["receipt"]["labels"]) == ("alice", {"team": "a"})


async def test_an_openai_stream_has_it_in_an_event_before_its_end() -> None:
    text = "".join(await run(chat_job(stream=True, receipt=True)))
    *_, receipt, done = text.split("\n\n")[:-1]
    assert done == "data: [DONE]"
    assert text.count(done) == 1
    name, data = receipt.split("\n")
    assert name == "event: receipt"
    event = json.loads(data.removeprefix("data: "))
    check(event.pop("receipt"), "/v1/chat/completions")
    assert event == {"type": "receipt", "object": "receipt", "choices": []}


async def test_a_list_of_decoded_events_ends_with_it() -> None:
    yields = await run(chat_job(stream=True, receipt=True), RAW_OPENAI_OUTPUT="0")
    check(yields[-1][-1]["receipt"], "/v1/chat/completions")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_list_has_one_for_all_of_its_prompts(stream: bool) -> None:
    *others, last = await run({**LISTS, "stream": stream})
    check(last["receipt"], "list", requests=2)
    assert all("receipt" not in chunk for chunk in others)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_for_llm_engine_has_it_among_its_keys(stream: bool) -> None:
    job = {"format": "llm_engine", "prompt": "Hi", "stream": stream, "receipt": True}
    *_, last = await run({**job, "max_batch_size": 1})
    check(last["receipt"], "raw")
    assert last["output"]["num_completion_tokens"] == len(WORDS)
    assert not stream or last["output"]["finished"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("job", [chat_job, raw_job])
async def test_an_answer_has_none_unless_requested(job: Any, stream: bool) -> None:
    assert "receipt" not in str(await run(job(stream=stream)))


async def test_an_answer_without_an_engine_has_none() -> None:
    (models,) = await run({"route": "/v1/models", "receipt": True})
    assert "receipt" not in models


async def test_a_failed_job_has_none() -> None:
    yields = await run(raw_job(stream=True, receipt=True), *WORDS[:2], RuntimeError("a defect"))
    assert failure(yields)["code"] == 500
    assert "receipt" not in str(yields)


async def test_a_receipt_that_is_no_boolean_is_refused() -> None:
    assert failure(await run(raw_job(stream=False, receipt="yes")))["param"] == "receipt"
    assert failure(await run(chat_job(stream=False, receipt="yes")))["param"] == "receipt"


async def test_the_requests_of_a_dead_engine_end_before_it_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would be charged for its restart."""
    with ScriptedEngine(*tokens("a", "b", finish=None), EngineDead()) as engine:
        engine.next_script = tuple(WORDS)
        recover, charged = engine.wait_for_recovery, []

        async def wait_for_recovery(request_id: str) -> None:
            charged.append(engine_use.get().gpu_seconds)
            await recover(request_id)

        monkeypatch.setattr(engine, "wait_for_recovery", wait_for_recovery)
        (chunk,) = await yields_of(engine, raw_job(stream=False, receipt=True))
    assert charged == [2 * SECONDS_PER_TOKEN]
    assert chunk["receipt"]["gpu_seconds"] == (2 + len(WORDS)) * SECONDS_PER_TOKEN


async def test_a_cancelled_job_is_stored_with_its_status(tmp_path: Path) -> None:
    environ = {"BASE_PATH": str(tmp_path), "RECEIPTS": "1"}
    with ScriptedEngine(WORDS[0], HANG) as engine:
        yields = worker(engine, **environ).handle({"id": "job-1", "input": raw_job(stream=True)})
        await anext(yields)
        await yields.aclose()
        await poll_until(lambda: bool(read_receipts(tmp_path)))
    (receipt,) = read_receipts(tmp_path)
    assert (receipt["status"], receipt["tokens"]["completion"]) == (499, 1)
