"""Lists of prompts as jobs: order, sizes, failures, further tries, the end by Ctrl-C."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.deployed import ACCOUNT, HANGS, deployed
from unit.client.llm.conftest import Call
from unit.client.llm.scripted import RETRYABLE, Worker

from emulator import Emulator, Status
from llm_worker_client import LLM
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.llm import EndpointError, PromptError, RequestOutput
from llm_worker_client.llm.lists import Form, Lists
from llm_worker_client.llm.prompts import Item

REFUSED = {"message": "no such token", "code": 400, "retryable": False}


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def lists(emulator: Emulator, count: int, **form: Any) -> Lists:
    items = [Item(str(index), {}, None) for index in range(count)]
    endpoint = AsyncEndpoint("local", ACCOUNT, emulator.api_url)
    return Lists(endpoint, items, Form("prompts", {}, {}, 4, **form), use_tqdm=False)


async def test_answers_come_in_the_order_of_the_prompts(generate: Call, worker: Worker) -> None:
    prompts = [f"p{index}" for index in range(1000)]
    outputs = await generate(prompts)
    assert [output.prompt for output in outputs] == prompts
    assert texts(outputs) == [f"{prompt}!" for prompt in prompts]
    # Shared by all jobs that run at once.
    assert worker.sizes == [125] * 8


async def test_no_prompts_ask_for_nothing(generate: Call, worker: Worker) -> None:
    assert await generate([]) == []
    assert worker.given == []


async def test_jobs_hold_what_all_prompts_share_once(generate: Call, worker: Worker) -> None:
    await generate(["a", "b"], {"max_tokens": 3})
    assert worker.given == [
        {
            "prompts": ["a", "b"],
            "sampling_params": {"max_tokens": 3},
            "return_token_ids": True,
            "use_tqdm": False,
        }
    ]
    await generate(["a", "b"], [{"max_tokens": 3}, None])
    assert worker.given[1]["sampling_params"] == [{"max_tokens": 3}, {}]


async def test_each_adapter_has_jobs_of_its_own(generate: Call, worker: Worker) -> None:
    adapters = ["x", None, SimpleNamespace(lora_name="x", lora_path="/x")]
    outputs = await generate(["a", "b", "c"], lora_request=adapters)
    assert texts(outputs) == ["a!", "b!", "c!"]
    asked = {given.get("lora"): given["prompts"] for given in worker.given}
    assert asked == {"x": ["a", "c"], None: ["b"]}
    assert [output.lora_request for output in outputs] == ["x", None, "x"]


async def test_conversations_reach_the_worker_as_they_are(llm: LLM, worker: Worker) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    conversations = [[{"role": "user", "content": [image]}], [{"role": "user", "content": "Hi"}]]

    def chat(messages: Any, **named: Any) -> list[RequestOutput]:
        return llm.chat(messages, use_tqdm=False, **named)

    await asyncio.to_thread(chat, conversations, tools=[{"type": "function"}])
    await asyncio.to_thread(chat, conversations[1], add_generation_prompt=False)
    several, one = worker.given
    assert several["messages_list"] == conversations
    assert several["tools"] == [{"type": "function"}]
    assert "add_generation_prompt" not in several
    assert (one["messages_list"], one["add_generation_prompt"]) == ([conversations[1]], False)


async def test_a_prompt_that_fails_is_named_with_what_the_others_got(
    generate: Call, worker: Worker
) -> None:
    worker.errors = {"b": REFUSED, "c": REFUSED}
    with pytest.raises(PromptError, match="prompt 1: no such token") as failed:
        await generate(["a", "b", "c", "d"])
    assert (failed.value.index, failed.value.status) == (1, 400)
    assert isinstance(failed.value, ValueError)
    assert [output and output.prompt for output in failed.value.outputs] == ["a", None, None, "d"]


async def test_prompts_that_fail_for_now_are_asked_again_alone(
    generate: Call, worker: Worker
) -> None:
    worker.errors = {"b": RETRYABLE}
    assert texts(await generate(["a", "b", "c"])) == ["a!", "b!", "c!"]
    assert [given["prompts"] for given in worker.given] == [["a", "b", "c"], ["b"]]


async def test_a_job_that_fails_for_now_is_run_again(generate: Call, worker: Worker) -> None:
    worker.failures = [RETRYABLE]
    assert texts(await generate(["a", "b"])) == ["a!", "b!"]
    assert worker.sizes == [2, 2]


async def test_tries_have_an_end(emulator: Emulator, worker: Worker) -> None:
    worker.failures = [{**RETRYABLE, "retry_after": 0}] * 3
    with pytest.raises(EndpointError, match="the engine is full"):
        await lists(emulator, 2, pauses=(0, 0)).answered()
    assert worker.sizes == [2, 2, 2]


async def test_a_job_that_is_refused_is_not_run_again(generate: Call, worker: Worker) -> None:
    worker.failures = [{**REFUSED, "message": "max_tokens: a number"}]
    with pytest.raises(EndpointError, match="max_tokens: a number") as refused:
        await generate(["a", "b"])
    assert refused.value.status == 400
    assert not isinstance(refused.value, PromptError)
    assert worker.sizes == [2]


async def test_results_that_are_too_large_together_are_asked_for_apart(
    generate: Call, worker: Worker
) -> None:
    worker.most = 2
    prompts = [str(index) for index in range(7)]
    assert texts(await generate(prompts)) == [f"{prompt}!" for prompt in prompts]
    worker.most = 0


async def test_a_worker_that_answers_nothing_costs_few_jobs(generate: Call, worker: Worker) -> None:
    worker.most = 0
    with pytest.raises(EndpointError, match="no result of prompt"):
        await generate([str(index) for index in range(50)])
    assert worker.sizes == [50, 25, 13, 7, 4, 2, 1]


async def test_a_worker_that_knows_no_lists_is_an_error() -> None:
    async with deployed(lambda _: [{"text": "Hi"}]) as emulator:
        with pytest.raises(EndpointError, match="does not know lists"):
            await lists(emulator, 1).answered()


async def test_whoever_gives_up_cancels_all_jobs() -> None:
    async with deployed(lambda _: [HANGS]) as emulator:
        asking = asyncio.create_task(lists(emulator, 200).answered())
        while sum(job.status is Status.IN_PROGRESS for job in emulator.queue.jobs.values()) < 4:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert {job.status for job in emulator.queue.jobs.values()} == {Status.CANCELLED}


async def test_a_failure_cancels_the_other_jobs(worker: Worker) -> None:
    worker.errors = {"60": REFUSED}

    def answer(given: Any) -> list[Any]:
        return worker.answer(given) if "60" in given["prompts"] else [HANGS]

    async with deployed(answer) as emulator:
        with pytest.raises(PromptError, match="prompt 60"):
            await lists(emulator, 200).answered()
        statuses = sorted(job.status.name for job in emulator.queue.jobs.values())
        assert statuses == ["CANCELLED"] * 3 + ["COMPLETED"]


async def test_a_platform_that_is_not_there_is_an_error(emulator: Emulator) -> None:
    form = Form("prompts", {}, {}, 1, pauses=())
    endpoint = AsyncEndpoint("local", "rpa_wrong", emulator.api_url)
    with pytest.raises(EndpointError, match="API key"):
        await Lists(endpoint, [Item("a", {}, None)], form, use_tqdm=False).answered()
