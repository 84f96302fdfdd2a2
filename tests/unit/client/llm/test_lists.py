"""Lists of prompts as jobs: order, sizes, failures, further tries, the end by Ctrl-C."""

import asyncio
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from support.scripted_endpoint import ACCOUNT, HANGS, WITH_KEY, answering, scripted_endpoint
from unit.client.llm.conftest import RETRYABLE, Call, Echo

from emulator import Emulator, Status
from llm_worker_client import LLM
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.llm import EndpointError, PromptError, RequestOutput
from llm_worker_client.llm.lists import JobTemplate, Lists
from llm_worker_client.llm.prompts import Item

REFUSED = {"message": "no such token", "code": 400, "retryable": False}


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def lists(emulator: Emulator, count: int, key: str = ACCOUNT, **template: Any) -> Lists:
    items = [Item(str(index), {}, None) for index in range(count)]
    endpoint = AsyncEndpoint("local", key, emulator.api_url)
    return Lists(endpoint, items, JobTemplate("prompts", {}, {}, 4, **template), use_tqdm=False)


async def test_answers_come_in_the_order_of_the_prompts(ask_llm: Call, echo_llm: Echo) -> None:
    prompts = [f"p{index}" for index in range(1000)]
    outputs = await ask_llm(prompts)
    assert [output.prompt for output in outputs] == prompts
    assert texts(outputs) == [f"{prompt}!" for prompt in prompts]
    # Shared by all jobs that run at once.
    assert echo_llm.sizes == [125] * 8


async def test_no_prompts_ask_for_nothing(ask_llm: Call, echo_llm: Echo) -> None:
    assert await ask_llm([]) == []
    assert echo_llm.given == []


async def test_jobs_hold_what_all_prompts_share_once(ask_llm: Call, echo_llm: Echo) -> None:
    shared = {"prompts": ["a", "b"], "return_token_ids": True, "use_tqdm": False}
    await ask_llm(["a", "b"], {"max_tokens": 3})
    await ask_llm(["a", "b"], [{"max_tokens": 3}, None])
    assert echo_llm.given == [
        {**shared, "sampling_params": {"max_tokens": 3}},
        {**shared, "sampling_params": [{"max_tokens": 3}, {}]},
    ]


async def test_each_adapter_has_jobs_of_its_own(ask_llm: Call, echo_llm: Echo) -> None:
    adapters = ["x", None, SimpleNamespace(lora_name="x", lora_path="/x")]
    outputs = await ask_llm(["a", "b", "c"], lora_request=adapters)
    assert texts(outputs) == ["a!", "b!", "c!"]
    asked = {given.get("lora"): given["prompts"] for given in echo_llm.given}
    assert asked == {"x": ["a", "c"], None: ["b"]}
    assert [output.lora_request for output in outputs] == ["x", None, "x"]


async def test_conversations_reach_the_worker_as_they_are(llm: LLM, echo_llm: Echo) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    conversations = [[{"role": "user", "content": [image]}], [{"role": "user", "content": "Hi"}]]

    def chat(messages: Any, **named: Any) -> list[RequestOutput]:
        return llm.chat(messages, use_tqdm=False, **named)

    await asyncio.to_thread(chat, conversations, tools=[{"type": "function"}])
    await asyncio.to_thread(chat, conversations[1], add_generation_prompt=False)
    several, one = echo_llm.given
    assert (several["messages_list"], several["tools"]) == (conversations, [{"type": "function"}])
    assert "add_generation_prompt" not in several
    assert (one["messages_list"], one["add_generation_prompt"]) == ([conversations[1]], False)


async def test_a_failed_prompt_is_named_with_what_others_got(ask_llm: Call, echo_llm: Echo) -> None:
    echo_llm.errors = {"b": REFUSED, "c": REFUSED}
    with pytest.raises(PromptError, match="prompt 1: no such token") as failed:
        await ask_llm(["a", "b", "c", "d"])
    assert (failed.value.index, failed.value.status) == (1, 400)
    assert isinstance(failed.value, ValueError)
    assert [output and output.prompt for output in failed.value.outputs] == ["a", None, None, "d"]


async def test_prompts_that_fail_for_now_are_asked_alone(
    emulator: Emulator, echo_llm: Echo
) -> None:
    echo_llm.errors = {"1": RETRYABLE}
    assert texts(await lists(emulator, 3, pauses=[0]).answer()) == ["0!", "1!", "2!"]
    assert [given["prompts"] for given in echo_llm.given] == [["0", "1", "2"], ["1"]]


async def test_a_job_that_fails_for_now_is_run_again(emulator: Emulator, echo_llm: Echo) -> None:
    echo_llm.failures = [RETRYABLE] * 2
    assert texts(await lists(emulator, 2, pauses=(0, 0)).answer()) == ["0!", "1!"]
    assert echo_llm.sizes == [2, 2, 2]


async def test_tries_have_an_end(emulator: Emulator, echo_llm: Echo) -> None:
    echo_llm.failures = [RETRYABLE] * 3
    with pytest.raises(EndpointError, match="the engine is full"):
        await lists(emulator, 2, pauses=(0, 0)).answer()
    assert echo_llm.sizes == [2, 2, 2]


async def test_a_job_that_is_refused_is_not_run_again(ask_llm: Call, echo_llm: Echo) -> None:
    echo_llm.failures = [{**REFUSED, "message": "max_tokens: a number"}]
    with pytest.raises(EndpointError, match="max_tokens: a number") as refused:
        await ask_llm(["a", "b"])
    assert refused.value.status == 400
    assert not isinstance(refused.value, PromptError)
    assert echo_llm.sizes == [2]


async def test_results_too_large_together_are_asked_for_apart(
    ask_llm: Call, echo_llm: Echo
) -> None:
    echo_llm.most = 2
    prompts = [str(index) for index in range(7)]
    assert texts(await ask_llm(prompts)) == [f"{prompt}!" for prompt in prompts]


async def test_a_worker_that_answers_nothing_costs_few_jobs(ask_llm: Call, echo_llm: Echo) -> None:
    echo_llm.most = 0
    with pytest.raises(EndpointError, match="no result of prompt"):
        await ask_llm([str(index) for index in range(50)])
    assert echo_llm.sizes == [50, 25, 13, 7, 4, 2, 1]


async def test_a_worker_that_knows_no_lists_is_an_error() -> None:
    async with scripted_endpoint(answering(lambda _: [{"text": "Hi"}]), WITH_KEY) as emulator:
        with pytest.raises(EndpointError, match="does not know lists"):
            await lists(emulator, 1).answer()


async def test_a_wrong_key_is_an_error(emulator: Emulator) -> None:
    with pytest.raises(EndpointError, match="API key"):
        await lists(emulator, 1, "rpa_wrong", pauses=()).answer()


async def test_whoever_gives_up_cancels_all_jobs() -> None:
    async with scripted_endpoint(answering(lambda _: [HANGS]), WITH_KEY) as emulator:
        asking = asyncio.create_task(lists(emulator, 200).answer())
        while sum(job.status is Status.IN_PROGRESS for job in emulator.queue.jobs.values()) < 4:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert {job.status for job in emulator.queue.jobs.values()} == {Status.CANCELLED}


async def test_a_failure_cancels_the_other_jobs(echo_llm: Echo) -> None:
    echo_llm.errors = {"60": REFUSED}

    def answer(given: Any) -> list[Any]:
        return echo_llm.answer(given) if "60" in given["prompts"] else [HANGS]

    async with scripted_endpoint(answering(answer), WITH_KEY) as emulator:
        with pytest.raises(PromptError, match="prompt 60"):
            await lists(emulator, 200).answer()
        statuses = sorted(job.status.name for job in emulator.queue.jobs.values())
        assert statuses == ["CANCELLED"] * 3 + ["COMPLETED"]


# On a loop of its own, in front of an emulator in another thread:


def llm_of(emulator: Emulator) -> LLM:
    return LLM("local", api_key=ACCOUNT, base_url=emulator.api_url)


async def test_it_may_be_called_where_a_loop_runs_already(echo_llm: Echo) -> None:
    running = scripted_endpoint(answering(echo_llm.answer), WITH_KEY)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running) as emulator,
        llm_of(emulator) as llm,
    ):
        assert texts(llm.generate("a", use_tqdm=False)) == ["a!"]


def test_ctrl_c_cancels_the_jobs() -> None:
    main = threading.main_thread().ident
    assert main

    def answer(_: Any) -> list[Any]:
        signal.pthread_kill(main, signal.SIGINT)
        return [HANGS]

    running = scripted_endpoint(answering(answer), WITH_KEY)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running) as emulator,
        llm_of(emulator) as llm,
    ):
        with pytest.raises(KeyboardInterrupt):
            llm.generate("a", use_tqdm=False)
        (job,) = emulator.queue.jobs.values()
        assert job.status is Status.CANCELLED
