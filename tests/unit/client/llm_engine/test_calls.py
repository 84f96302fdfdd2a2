"""Each call of LLM Engine's classes: the job that it submits, and the object that it returns."""

import asyncio
import base64
import inspect
import io
import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from support.scripted_endpoint import Script

import llm_worker_client
from llm_worker_client.llm_engine import (
    BatchJobStatus,
    Completion,
    CreateBatchCompletionsModelConfig,
    CreateBatchCompletionsRequestContent,
    File,
    FilteredChatCompletionV2Request,
    FineTune,
    Model,
    ToolConfig,
)

pytestmark = pytest.mark.usefixtures("configure_classes")
V1, V2 = "/v1/llm/batch-completions", "/v2/batch-completions"
TUNES = "/v1/llm/fine-tunes"
MODELS = "/v1/llm/model-endpoints"
CONFIG = CreateBatchCompletionsModelConfig(model="m", checkpoint_path="s3://c", labels={"a": "b"})
PROMPTS = CreateBatchCompletionsRequestContent(prompts=["p"], max_new_tokens=1, temperature=0)
HI = [{"role": "user", "content": "Hi"}]
CHAT = FilteredChatCompletionV2Request(messages=HI, logprobs=True)  # type: ignore[call-arg]  # unknown fields are sent
TOOL = ToolConfig(name="code_evaluator")
BATCH = {
    "output_data_path": "o",
    "data_parallelism": 1,
    "max_runtime_sec": 86400,
    "model_config": {"model": "m", "checkpoint_path": "s3://c", "labels": {"a": "b"}},
}
PROMPTS_SENT = {"prompts": ["p"], "max_new_tokens": 1, "temperature": 0.0}
CHATS_SENT = {"content": [{"messages": HI, "logprobs": True}], "labels": {"x": "y"}, "gpus": 1}
FILE_SENT = {"input_data_path": "i", "data_parallelism": 2, "tool_config": {"name": TOOL.name}}
TUNE_ARGUMENTS: dict[str, Any] = {
    "model": "m",
    "training_file": "f",
    "hyperparameters": {"epochs": 1},
    "suffix": "s",
}
DOWNLOAD = {"model_name": "a", "download_format": "hugging_face"}
# The worker's answers.
CREATED = {"job_id": "b"}
MODEL = {"id": "m", "name": "m", "source": "hugging_face", "status": "READY"}
MODEL |= {"inference_framework": "vllm"}
JOB = {"job_id": "b", "output_data_path": "o", "model_config": {"model": "m"}, "status": "queued"}
JOB |= {"created_at": "1", "expires_at": "2"}
TUNE = {"id": "t", "status": "RUNNING"}
EVENT = {"timestamp": 1.5, "message": "x", "level": "info"}
FILE = {"id": "f", "filename": "a.csv", "size": 3}
DELETED = {"deleted": True}
# Parameters of each method, each with its default if it has one.
REFERENCE: dict[str, list[list[Any]]] = json.loads(
    Path(__file__).with_name("signatures.json").read_text()
)


def batch(content: Any = None, **more: Any) -> Callable[[], Any]:
    return lambda: Completion.batch_create("o", CONFIG, content, **more)


def get_input(path: str) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": None}


def post_input(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


def method_input(method: str, path: str) -> dict[str, Any]:
    return {"route": path, "method": method, "body": None}


def drop_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: drop_none(one) for key, one in value.items() if one is not None}
    return [drop_none(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("call", "job_input", "output"),
    [
        (
            batch(PROMPTS, priority="1", cpus=2),
            post_input(V1, BATCH | {"content": PROMPTS_SENT}),
            CREATED,
        ),
        (
            batch([CHAT], use_v2=True, labels={"x": "y"}, gpus=1),
            post_input(V2, BATCH | CHATS_SENT),
            JOB,
        ),
        (
            batch(input_data_path="i", data_parallelism=2, tool_config=TOOL),
            post_input(V1, BATCH | FILE_SENT),
            CREATED,
        ),
        (lambda: Completion.get_batch_completion("b/1"), get_input(f"{V2}/b%2F1"), {"job": JOB}),
        (
            lambda: Completion.cancel_batch_completion("b"),
            method_input("POST", f"{V2}/b/actions/cancel"),
            {"success": True},
        ),
        (lambda: FineTune.create(**TUNE_ARGUMENTS), post_input(TUNES, TUNE_ARGUMENTS), {"id": "t"}),
        (lambda: FineTune.get("t"), get_input(f"{TUNES}/t"), TUNE),
        (lambda: FineTune.get_events("t"), get_input(f"{TUNES}/t/events"), {"events": [EVENT]}),
        (FineTune.list, get_input(TUNES), {"jobs": [TUNE]}),
        (
            lambda: FineTune.cancel("t"),
            method_input("PUT", f"{TUNES}/t/cancel"),
            {"success": False},
        ),
        (lambda: Model.get("org/m"), get_input(f"{MODELS}/org/m"), MODEL),
        (Model.list, get_input(MODELS), {"model_endpoints": [MODEL]}),
        (lambda: Model.delete("a"), method_input("DELETE", f"{MODELS}/a"), DELETED),
        (
            lambda: Model.download("a"),
            post_input(f"{MODELS}/download", DOWNLOAD),
            {"urls": {"a": "b"}},
        ),
        (lambda: File.get("f"), get_input("/v1/files/f"), FILE),
        (File.list, get_input("/v1/files"), {"files": [FILE]}),
        (lambda: File.delete("f"), method_input("DELETE", "/v1/files/f"), DELETED),
    ],
)
async def test_a_call_submits_one_job_and_returns_the_answer_as_an_object(
    script: Script, call: Any, job_input: dict[str, Any], output: Any
) -> None:
    script.outputs = [output]
    got = await asyncio.to_thread(call)
    assert drop_none(got if isinstance(got, dict) else json.loads(got.json())) == output
    assert script.inputs == [job_input]


async def test_answers_are_typed(script: Script) -> None:
    script.outputs = [{"model_endpoints": [MODEL]}]
    assert (await asyncio.to_thread(Model.list)).model_endpoints[0].source == "hugging_face"
    script.outputs = [{**TUNE, "fine_tuned_model": None}]
    assert (await asyncio.to_thread(FineTune.get, "t")).status is BatchJobStatus.RUNNING
    script.outputs = [{"success": False}]
    assert str(await asyncio.to_thread(FineTune.cancel, "t")) == "success=False"


@pytest.mark.parametrize("mode", ["r", "rb"])
async def test_a_text_file_or_a_binary_file_is_uploaded(
    script: Script, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "é.csv").write_text("prompt,response\n")
    script.outputs = [{"id": "f"}]
    with (tmp_path / "é.csv").open(mode) as file:
        uploaded = await asyncio.to_thread(File.upload, file)  # type: ignore[arg-type]  # text files are accepted, too
    assert uploaded.id == "f"
    content = base64.b64encode(b"prompt,response\n").decode()
    body = {"filename": "é.csv", "content_base64": content}
    assert script.inputs[0]["openai_route"] == "/v1/files"
    assert body.items() <= script.inputs[0]["openai_input"].items()


async def test_a_file_in_memory_is_uploaded_under_a_default_name(script: Script) -> None:
    script.outputs = [{"id": "f"}]
    await asyncio.to_thread(File.upload, io.BytesIO(b"a"))  # type: ignore[arg-type]  # some scripts do this
    body = script.inputs[0]["openai_input"]
    assert (body["filename"], base64.b64decode(body["content_base64"])) == ("file", b"a")


async def test_a_files_text_is_downloaded(script: Script) -> None:
    script.outputs = ["a,b\n"]
    got = await asyncio.to_thread(File.download, "f")
    assert got.dict() == {"id": "f", "content": "a,b\n"}
    assert script.inputs[0]["openai_route"].startswith("/v1/files/f/content?offset=0")


# The methods have the parameters of LLM Engine's reference: names, order and defaults:


@pytest.mark.parametrize("name", REFERENCE)
def test_a_method_has_the_parameters_of_the_reference(name: str) -> None:
    method = attrgetter(name)(llm_worker_client)
    parameters = dict(inspect.signature(method).parameters)
    if method in {Completion.create, Completion.acreate}:
        # Accepts keys that the reference leaves out.
        assert parameters.pop("more").kind is inspect.Parameter.VAR_KEYWORD
    assert [
        [name] if one.default is inspect.Parameter.empty else [name, one.default]
        for name, one in parameters.items()
    ] == REFERENCE[name]
    assert {one.kind for one in parameters.values()} <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_only_acreate_is_asynchronous() -> None:
    asynchronous = [
        name
        for name in REFERENCE
        if inspect.iscoroutinefunction(attrgetter(name)(llm_worker_client))
    ]
    assert asynchronous == ["Completion.acreate"]
