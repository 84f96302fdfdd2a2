"""Batches of prompts: their files, their results, and how another script continues one."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.processes.background import poll_until
from support.scripted_endpoint import ACCOUNT, JobFailure, OutputsFunction

from emulator import Emulator
from llm_worker_client import LLM
from llm_worker_client.llm import EndpointError, Logprob, PromptError, RequestOutput, batches
from llm_worker_client.llm.inputs import Item
from llm_worker_client.llm.outputs import create_output

TOP = {"token_id:5": -2.0, "token_id:6": -0.1}
LOGPROBS = {"tokens": ["token_id:5"], "token_logprobs": [-2.0], "top_logprobs": [TOP]}
CHOICE = {"index": 0, "text": "x", "token_ids": [5], "prompt_token_ids": [1, 2]}
CHOICE |= {"finish_reason": "length", "stop_reason": None, "logprobs": LOGPROBS}
USAGE = {"prompt_tokens": 2, "completion_tokens": 1}
COMPLETION = {"id": "cmpl-1", "usage": USAGE, "choices": [CHOICE]}
REFUSAL = {"status_code": 400, "body": {"error": {"message": "no", "code": 400}}}


ELSEWHERE = {"error": {"message": "on another volume", "code": 503, "retryable": True}}

RUN_WITH = {"input": {"batch": {"id": "batch_1"}}}


class Routes:
    """A worker's routes for files and batches, with a batch that completes immediately.

    Attributes:
        batch: Fields that override those of the batch.
        failed: Indexes of failed prompts.
        submitted: Inputs of jobs that run batches.
        misses: Number of requests until one reaches a worker with the volume of the batch.
    """

    def __init__(self) -> None:
        self.batch: dict[str, Any] = {}
        self.failed: list[int] = []
        self.submitted: list[Any] = []
        self.misses = 0
        self.input = b""
        self.created: dict[str, Any] = {}

    def answer(self, job_input: Any) -> list[Any]:
        if "batch" in job_input:
            self.submitted.append(job_input["batch"])
            return [{}]
        if self.misses:
            self.misses -= 1
            raise JobFailure(json.dumps(ELSEWHERE))
        path, body = job_input["openai_route"].partition("?")[0], job_input["openai_input"]
        if path == "/v1/files":
            self.input = base64.b64decode(body["content_base64"])
            return [{"id": "file-in"}]
        if path.startswith("/v1/files/"):
            return ["\n".join(map(json.dumps, self._lines(path.split("/")[3])))]
        if path == "/v1/batches":
            self.created = body
            return [self._describe_batch() | {"run_with": RUN_WITH}]
        return [self._describe_batch()]

    def _describe_batch(self) -> dict[str, Any]:
        counts = {"total": 2, "completed": 2, "failed": 0}
        errors = "file-err" if self.failed else None
        files = {"input_file_id": "file-in", "output_file_id": "file-out", "error_file_id": errors}
        batch = {"id": "batch_1", "status": "completed", "request_counts": counts}
        return batch | files | self.batch

    def _lines(self, file_id: str) -> list[Any]:
        requests = [json.loads(line) for line in self.input.splitlines()]
        if file_id == "file-in":
            return requests
        is_error_file, results = file_id == "file-err", list[Any]()
        # Results may come in any order.
        for name in (line["custom_id"] for line in reversed(requests)):
            if (int(name) in self.failed) == is_error_file:
                body = {**COMPLETION, "choices": [{**CHOICE, "text": f"x{name}"}]}
                response = REFUSAL if is_error_file else {"status_code": 200, "body": body}
                results.append({"custom_id": name, "response": response})
        return results


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
def answer(routes: Routes) -> OutputsFunction:
    return routes.answer


@pytest.fixture
def llm(emulator: Emulator) -> Iterator[LLM]:
    with LLM("local", api_key=ACCOUNT, base_url=emulator.api_url, model="m") as client:
        yield client


async def run_batch(llm: LLM, *arguments: Any) -> list[RequestOutput]:
    return await asyncio.to_thread(
        lambda: llm.generate_batch(*arguments).wait_for_outputs(use_tqdm=False)
    )


async def test_prompts_become_one_batch_that_starts_by_itself(llm: LLM, routes: Routes) -> None:
    outputs = await run_batch(llm, ["a", [1, 2]], {"max_tokens": 1}, ["x", None])
    assert routes.created["endpoint"] == "/v1/completions"
    assert routes.submitted == [{"id": "batch_1"}]
    sent = [json.loads(line)["body"] for line in routes.input.splitlines()]
    assert [(body["prompt"], body["model"]) for body in sent] == [("a", "x"), ([1, 2], "m")]
    texts = [(output.prompt, output.outputs[0].text) for output in outputs]
    assert texts == [("a", "x0"), (None, "x1")]


async def test_another_script_continues_a_batch_by_its_id(llm: LLM, routes: Routes) -> None:
    await asyncio.to_thread(llm.generate_batch, ["a", [1, 2]])
    routes.submitted.clear()
    batch = await asyncio.to_thread(llm.resume_batch, "batch_1")
    assert routes.submitted == []
    outputs = await asyncio.to_thread(batch.wait_for_outputs, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["a", None]
    routes.batch = {"status": "in_progress", "run_state": "running"}
    await asyncio.to_thread(llm.resume_batch, "batch_1")
    assert routes.submitted == []


async def test_the_job_of_a_batch_that_no_worker_runs_is_sent_again(
    llm: LLM, routes: Routes
) -> None:
    await asyncio.to_thread(llm.generate_batch, ["a", [1, 2]])
    routes.submitted.clear()
    routes.batch = {"status": "in_progress", "run_with": RUN_WITH}
    waiting = await asyncio.to_thread(llm.resume_batch, "batch_1")
    assert routes.submitted == [{"id": "batch_1"}]
    wait = asyncio.create_task(asyncio.to_thread(waiting.wait_for_outputs, use_tqdm=False))
    await poll_until(lambda: len(routes.submitted) > 1)
    routes.batch = {}
    assert len(await wait) == 2


async def test_the_error_of_a_failed_prompt_has_its_index_and_the_other_outputs(
    llm: LLM, routes: Routes
) -> None:
    routes.failed = [1]
    with pytest.raises(PromptError, match="prompt 1: no") as raised:
        await run_batch(llm, ["a", "b"])
    assert (raised.value.index, raised.value.status) == (1, 400)
    assert [output and output.prompt for output in raised.value.outputs] == ["a", None]


async def test_requests_that_reach_a_worker_with_another_volume_are_sent_again(
    llm: LLM, routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr("llm_worker_client.llm.batches.time.sleep", pauses.append)
    batch = await asyncio.to_thread(llm.generate_batch, ["a", "b"])
    routes.misses = batches.MAX_ATTEMPTS - 1
    assert await asyncio.to_thread(lambda: batch.status) == "completed"
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    routes.misses = batches.MAX_ATTEMPTS
    with pytest.raises(EndpointError, match="on another volume"):
        await asyncio.to_thread(lambda: batch.status)
    assert len(pauses) == 2 * (batches.MAX_ATTEMPTS - 1)


WIDE = {"errors": {"data": [{"message": "wide"}]}}


@pytest.mark.parametrize(
    ("batch", "failed", "message"),
    [
        ({"status": "expired", "output_file_id": None}, [], "batch_1 is expired"),
        ({"status": "cancelled"}, [], "batch_1 is cancelled"),
        ({"status": "failed", "output_file_id": None, **WIDE}, [], "batch_1 has failed: wide"),
        ({"error_file_id": None}, [1], "batch_1 has no result for prompt 1"),
    ],
)
async def test_a_batch_without_all_results_is_an_error(
    llm: LLM, routes: Routes, batch: dict[str, Any], failed: list[int], message: str
) -> None:
    routes.batch, routes.failed = batch, failed
    with pytest.raises(EndpointError, match=message):
        await run_batch(llm, ["a", "b"])


async def test_prompts_too_large_for_a_batch_are_refused_before_they_are_sent(
    llm: LLM, routes: Routes
) -> None:
    with pytest.raises(ValueError, match="make several"):
        await run_batch(llm, ["a" * 15_000_000])
    assert routes.input == b""


def body(params: dict[str, Any], url: str = batches.COMPLETIONS) -> dict[str, Any]:
    (line,) = batches.encode_input_file([Item("a", params, None)], url, {}).splitlines()
    found: dict[str, Any] = json.loads(line)["body"]
    return found


def test_lines_have_the_defaults_of_the_raw_form() -> None:
    raw = {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    assert body({}).items() >= raw.items()
    assert body({"max_tokens": 3})["max_tokens"] == 3
    # Beam search lines omit parameters that it would ignore.
    assert not body({"use_beam_search": True}).keys() & {"top_p", "top_k", "min_p"}


def test_a_chats_log_probabilities_are_requested_in_the_format_of_chats() -> None:
    assert body({"logprobs": 2})["logprobs"] == 2
    assert body({"return_token_log_probs": True})["logprobs"] == 0
    chat = body({"logprobs": 2}, batches.CHATS)
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 2)


def test_parameters_that_a_batch_would_lose_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"sampling_params\.prompt_logprobs"):
        body({"prompt_logprobs": 1})
    with pytest.raises(ValueError, match=r"sampling_params\.detokenize"):
        body({"detokenize": False})
    assert "detokenize" not in body({"detokenize": True})


def test_log_probabilities_are_keyed_by_token_id() -> None:
    line = {"response": {"body": COMPLETION}}
    (found,) = create_output(Item("a", {"logprobs": 1}, None), batches.parse_result(line)).outputs
    assert found.logprobs == [{6: Logprob(-0.1, 1), 5: Logprob(-2.0, None)}]
    assert found.cumulative_logprob == -2.0
