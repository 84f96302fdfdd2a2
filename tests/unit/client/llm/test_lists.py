"""Lists of prompts as jobs: order, sizes, failures and retries."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from support.scripted_endpoint import ACCOUNT, HANG, WITH_KEY, make_handler, scripted_endpoint
from unit.client.llm.conftest import RETRYABLE, Call, Echo

from emulator import Emulator, Status
from llm_worker_client import LLM
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.llm import EndpointError, PromptError, RequestOutput
from llm_worker_client.llm.inputs import Item
from llm_worker_client.llm.lists import ItemRunner, JobTemplate

REFUSAL = {"message": "no such token", "code": 400, "retryable": False}


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def create_runner(
    emulator: Emulator, count: int, key: str = ACCOUNT, **template: Any
) -> ItemRunner:
    items = [Item(str(index), {}, None) for index in range(count)]
    endpoint = AsyncEndpoint("local", key, emulator.api_url)
    return ItemRunner(
        endpoint, items, JobTemplate("prompts", {}, {}, 4, **template), use_tqdm=False
    )


async def test_outputs_have_the_order_of_the_prompts(ask_llm: Call, echo_llm: Echo) -> None:
    prompts = [f"p{index}" for index in range(1000)]
    outputs = await ask_llm(prompts)
    assert [output.prompt for output in outputs] == prompts
    assert texts(outputs) == [f"{prompt}!" for prompt in prompts]
    # The prompts are divided among all concurrent jobs.
    assert echo_llm.sizes == [125] * 8


async def test_an_empty_list_submits_no_job(ask_llm: Call, echo_llm: Echo) -> None:
    assert await ask_llm([]) == []
    assert echo_llm.inputs == []


async def test_parameters_that_all_prompts_share_are_in_a_job_once(
    ask_llm: Call, echo_llm: Echo
) -> None:
    shared = {"prompts": ["a", "b"], "return_token_ids": True, "use_tqdm": False}
    await ask_llm(["a", "b"], {"max_tokens": 3})
    await ask_llm(["a", "b"], [{"max_tokens": 3}, None])
    assert echo_llm.inputs == [
        {**shared, "sampling_params": {"max_tokens": 3}},
        {**shared, "sampling_params": [{"max_tokens": 3}, {}]},
    ]


async def test_each_adapter_has_jobs_of_its_own(ask_llm: Call, echo_llm: Echo) -> None:
    adapters = ["x", None, SimpleNamespace(lora_name="x", lora_path="/x")]
    outputs = await ask_llm(["a", "b", "c"], lora_request=adapters)
    assert texts(outputs) == ["a!", "b!", "c!"]
    prompts = {job.get("lora"): job["prompts"] for job in echo_llm.inputs}
    assert prompts == {"x": ["a", "c"], None: ["b"]}
    assert [output.lora_request for output in outputs] == ["x", None, "x"]


async def test_conversations_reach_the_worker_unchanged(llm: LLM, echo_llm: Echo) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    conversations = [[{"role": "user", "content": [image]}], [{"role": "user", "content": "Hi"}]]

    def chat(messages: Any, **options: Any) -> list[RequestOutput]:
        return llm.chat(messages, use_tqdm=False, **options)

    await asyncio.to_thread(chat, conversations, tools=[{"type": "function"}])
    await asyncio.to_thread(chat, conversations[1], add_generation_prompt=False)
    several, one = echo_llm.inputs
    assert (several["messages_list"], several["tools"]) == (conversations, [{"type": "function"}])
    assert "add_generation_prompt" not in several
    assert (one["messages_list"], one["add_generation_prompt"]) == ([conversations[1]], False)


async def test_the_error_of_a_failed_prompt_has_its_index_and_the_other_outputs(
    ask_llm: Call, echo_llm: Echo
) -> None:
    echo_llm.errors = {"b": REFUSAL, "c": REFUSAL}
    with pytest.raises(PromptError, match="prompt 1: no such token") as raised:
        await ask_llm(["a", "b", "c", "d"])
    assert (raised.value.index, raised.value.status) == (1, 400)
    assert isinstance(raised.value, ValueError)
    assert [output and output.prompt for output in raised.value.outputs] == ["a", None, None, "d"]


async def test_only_prompts_with_a_retryable_error_are_sent_again(
    emulator: Emulator, echo_llm: Echo
) -> None:
    echo_llm.errors = {"1": RETRYABLE}
    assert texts(await create_runner(emulator, 3, retry_delays=[0]).run()) == ["0!", "1!", "2!"]
    assert [job["prompts"] for job in echo_llm.inputs] == [["0", "1", "2"], ["1"]]


async def test_a_job_with_a_retryable_error_runs_again(emulator: Emulator, echo_llm: Echo) -> None:
    echo_llm.failures = [RETRYABLE] * 2
    assert texts(await create_runner(emulator, 2, retry_delays=(0, 0)).run()) == ["0!", "1!"]
    assert echo_llm.sizes == [2, 2, 2]


async def test_retries_are_limited(emulator: Emulator, echo_llm: Echo) -> None:
    echo_llm.failures = [RETRYABLE] * 3
    with pytest.raises(EndpointError, match="the engine is full"):
        await create_runner(emulator, 2, retry_delays=(0, 0)).run()
    assert echo_llm.sizes == [2, 2, 2]


async def test_a_refused_job_does_not_run_again(ask_llm: Call, echo_llm: Echo) -> None:
    echo_llm.failures = [{**REFUSAL, "message": "max_tokens: a number"}]
    with pytest.raises(EndpointError, match="max_tokens: a number") as raised:
        await ask_llm(["a", "b"])
    assert raised.value.status == 400
    assert not isinstance(raised.value, PromptError)
    assert echo_llm.sizes == [2]


async def test_results_too_large_for_one_job_are_requested_in_smaller_jobs(
    ask_llm: Call, echo_llm: Echo
) -> None:
    echo_llm.max_results = 2
    prompts = [str(index) for index in range(7)]
    assert texts(await ask_llm(prompts)) == [f"{prompt}!" for prompt in prompts]


async def test_a_worker_without_results_causes_few_jobs(ask_llm: Call, echo_llm: Echo) -> None:
    echo_llm.max_results = 0
    with pytest.raises(EndpointError, match="no result for prompt"):
        await ask_llm([str(index) for index in range(50)])
    assert echo_llm.sizes == [50, 25, 13, 7, 4, 2, 1]


async def test_a_worker_that_does_not_know_lists_is_an_error() -> None:
    async with scripted_endpoint(make_handler(lambda _: [{"text": "Hi"}]), WITH_KEY) as emulator:
        with pytest.raises(EndpointError, match="does not know lists"):
            await create_runner(emulator, 1).run()


async def test_a_wrong_key_is_an_error(emulator: Emulator) -> None:
    with pytest.raises(EndpointError, match="API key"):
        await create_runner(emulator, 1, "rpa_wrong", retry_delays=()).run()


async def test_cancelling_the_call_cancels_all_jobs() -> None:
    async with scripted_endpoint(make_handler(lambda _: [HANG]), WITH_KEY) as emulator:
        asking = asyncio.create_task(create_runner(emulator, 200).run())
        while sum(job.status is Status.IN_PROGRESS for job in emulator.queue.jobs.values()) < 4:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert {job.status for job in emulator.queue.jobs.values()} == {Status.CANCELLED}


async def test_a_failure_cancels_the_other_jobs(echo_llm: Echo) -> None:
    echo_llm.errors = {"60": REFUSAL}

    def answer(job_input: Any) -> list[Any]:
        return echo_llm.answer(job_input) if "60" in job_input["prompts"] else [HANG]

    async with scripted_endpoint(make_handler(answer), WITH_KEY) as emulator:
        with pytest.raises(PromptError, match="prompt 60"):
            await create_runner(emulator, 200).run()
        statuses = sorted(job.status.name for job in emulator.queue.jobs.values())
        assert statuses == ["CANCELLED"] * 3 + ["COMPLETED"]


async def test_generate_works_inside_a_running_loop(echo_llm: Echo) -> None:
    running = scripted_endpoint(make_handler(echo_llm.answer), WITH_KEY)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running) as emulator,
        LLM("local", api_key=ACCOUNT, base_url=emulator.api_url) as llm,
    ):
        assert texts(llm.generate("a", use_tqdm=False)) == ["a!"]
