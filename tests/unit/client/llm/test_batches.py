"""Batches of prompts: what is sent, how they end, and how another script goes on with one."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.deployed import ACCOUNT, deployed

from llm_worker_client import LLM
from llm_worker_client.llm import Batch, EndpointError, Logprob, PromptError, RequestOutput, lines
from llm_worker_client.llm.prompts import Item

COMPLETION = {
    "id": "cmpl-1",
    "usage": {"prompt_tokens": 2, "completion_tokens": 1},
    "choices": [
        {
            "index": 0,
            "text": "x",
            "token_ids": [5],
            "prompt_token_ids": [1, 2],
            "finish_reason": "length",
            "stop_reason": None,
            "logprobs": {
                "tokens": ["token_id:5"],
                "token_logprobs": [-2.0],
                "top_logprobs": [{"token_id:5": -2.0, "token_id:6": -0.1}],
            },
        }
    ],
}


class Volume:
    """A worker's routes for files and batches, with a batch that ends at once.

    Attributes:
        batch: what is different about it.
        failed: the places of lines that have failed.
        handed_in: the jobs that run batches.
    """

    def __init__(self, **batch: Any) -> None:
        self.batch = batch
        self.failed: list[int] = []
        self.handed_in: list[Any] = []
        self.input = b""
        self.created: dict[str, Any] = {}

    def answer(self, given: Any) -> list[Any]:
        if "batch" in given:
            self.handed_in.append(given)
            return [{}]
        path, body = given["openai_route"].partition("?")[0], given["openai_input"]
        if path == "/v1/files":
            self.input = base64.b64decode(body["content_base64"])
            return [{"id": "file-in"}]
        if path.startswith("/v1/files/"):
            return ["\n".join(map(json.dumps, self._lines(path.split("/")[3])))]
        if path == "/v1/batches":
            self.created = body
            return [self._shown() | {"run_with": {"input": {"batch": {"id": "batch_1"}}}}]
        return [self._shown()]

    def _shown(self) -> dict[str, Any]:
        counts = {"total": 2, "completed": 2, "failed": 0}
        files = {"input_file_id": "file-in", "output_file_id": "file-out", "error_file_id": None}
        if self.failed:
            files["error_file_id"] = "file-err"
        return (
            {"id": "batch_1", "status": "completed", "request_counts": counts} | files | self.batch
        )

    def _lines(self, file_id: str) -> list[Any]:
        asked = [json.loads(line) for line in self.input.splitlines()]
        if file_id == "file-in":
            return asked
        response: dict[str, Any] = {"status_code": 200, "body": COMPLETION}
        if file_id == "file-err":
            response = {"status_code": 400, "body": {"error": {"message": "no", "code": 400}}}
        wrong = file_id == "file-err"
        names = [line["custom_id"] for line in asked]
        # Whatever the order of the lines.
        return [
            {"custom_id": name, "response": response}
            for name in reversed(names)
            if (int(name) in self.failed) == wrong
        ]


@asynccontextmanager
async def script(volume: Volume) -> AsyncIterator[LLM]:
    async with deployed(volume.answer) as emulator:
        with LLM("local", api_key=ACCOUNT, base_url=emulator.api_url, model="m") as llm:
            yield llm


async def begun(llm: LLM, *given: Any) -> Batch:
    return await asyncio.to_thread(llm.generate_batch, *given)


async def ended(batch: Batch) -> list[RequestOutput]:
    return await asyncio.to_thread(batch.outputs, use_tqdm=False)


async def test_prompts_become_one_batch_that_begins_by_itself() -> None:
    volume = Volume()
    async with script(volume) as llm:
        outputs = await ended(await begun(llm, ["a", [1, 2]], {"max_tokens": 1}, ["x", None]))
    assert volume.created["endpoint"] == "/v1/completions"
    assert [given["batch"] for given in volume.handed_in] == [{"id": "batch_1"}]
    first, second = map(json.loads, volume.input.splitlines())
    assert (first["body"]["prompt"], first["body"]["model"]) == ("a", "x")
    assert (second["body"]["prompt"], second["body"]["model"]) == ([1, 2], "m")
    assert [output.prompt for output in outputs] == ["a", None]
    assert [output.outputs[0].text for output in outputs] == ["x", "x"]


async def test_another_script_goes_on_with_a_batch_by_its_id() -> None:
    volume = Volume()
    async with script(volume) as llm:
        await begun(llm, ["a", [1, 2]])
        volume.handed_in.clear()
        ended_one = await asyncio.to_thread(llm.batch, "batch_1")
        assert volume.handed_in == []
        outputs = await ended(ended_one)
        volume.batch = {"status": "in_progress"}
        await asyncio.to_thread(llm.batch, "batch_1")
    assert [given["batch"] for given in volume.handed_in] == [{"id": "batch_1"}]
    assert [output.prompt for output in outputs] == ["a", None]


async def test_a_prompt_that_failed_is_named_with_what_the_others_got() -> None:
    volume = Volume()
    volume.failed = [1]
    async with script(volume) as llm:
        with pytest.raises(PromptError, match="prompt 1: no") as failed:
            await ended(await begun(llm, ["a", "b"]))
    assert (failed.value.index, failed.value.status) == (1, 400)
    assert [output and output.prompt for output in failed.value.outputs] == ["a", None]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"status": "expired", "output_file_id": None}, "batch_1 is expired"),
        ({"status": "cancelled"}, "batch_1 is cancelled"),
        (
            {"status": "failed", "output_file_id": None, "errors": {"data": [{"message": "wide"}]}},
            "batch_1 has failed: wide",
        ),
    ],
)
async def test_a_batch_that_did_not_complete_is_an_error(
    batch: dict[str, Any], message: str
) -> None:
    async with script(Volume(**batch)) as llm:
        with pytest.raises(EndpointError, match=message):
            await ended(await begun(llm, ["a", "b"]))


async def test_an_answer_that_is_missing_is_an_error() -> None:
    volume = Volume(error_file_id=None)
    volume.failed = [1]
    async with script(volume) as llm:
        with pytest.raises(EndpointError, match="batch_1 has no line of prompt 1"):
            await ended(await begun(llm, ["a", "b"]))


async def test_prompts_that_are_too_many_for_a_batch_are_refused_before_they_are_sent() -> None:
    volume = Volume()
    async with script(volume) as llm:
        with pytest.raises(ValueError, match="make several"):
            await begun(llm, ["a" * 15_000_000])
    assert volume.input == b""


def body(params: dict[str, Any], url: str = lines.COMPLETIONS) -> dict[str, Any]:
    (line,) = lines.lines_of([Item("a", params, None)], url, {}).splitlines()
    found: dict[str, Any] = json.loads(line)["body"]
    return found


def test_lines_have_the_raw_forms_defaults() -> None:
    raw = {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    found = body({})
    assert {name: found[name] for name in raw} == raw
    assert body({"max_tokens": 3})["max_tokens"] == 3
    # Beam search takes none that it would ignore.
    assert not body({"use_beam_search": True}).keys() & {"top_p", "top_k", "min_p"}


def test_a_chats_log_probabilities_are_asked_for_as_chats_have_them() -> None:
    assert body({"logprobs": 2})["logprobs"] == 2
    assert body({"return_token_log_probs": True})["logprobs"] == 0
    asked = body({"logprobs": 2}, lines.CHATS)
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, 2)


def test_what_a_batch_would_lose_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"sampling_params\.prompt_logprobs"):
        body({"prompt_logprobs": 1})
    with pytest.raises(ValueError, match=r"sampling_params\.detokenize"):
        body({"detokenize": False})
    assert "detokenize" not in body({"detokenize": True})


def test_log_probabilities_are_told_by_token_ids() -> None:
    line = {"response": {"body": COMPLETION}}
    (found,) = lines.output_of(Item("a", {"logprobs": 1}, None), line).outputs
    assert found.logprobs == [{6: Logprob(-0.1, 1), 5: Logprob(-2.0, None)}]
    assert found.cumulative_logprob == -2.0
