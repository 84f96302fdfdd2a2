"""Each call of LLM Engine's classes: the job that it is, and what its answer becomes."""

import asyncio
import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.deployed import Scripted

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

BATCHES = "/v2/batch-completions"
TUNES = "/v1/llm/fine-tunes"
MODELS = "/v1/llm/model-endpoints"
CONFIG = CreateBatchCompletionsModelConfig(model="m", checkpoint_path="s3://c", labels={"a": "b"})
CONFIG_SENT = {"model": "m", "checkpoint_path": "s3://c", "labels": {"a": "b"}}
MODEL = {
    "id": "m",
    "name": "m",
    "source": "hugging_face",
    "status": "READY",
    "inference_framework": "vllm",
}
JOB = {
    "job_id": "b",
    "output_data_path": "o",
    "model_config": {"model": "m"},
    "status": "queued",
    "created_at": "1",
    "expires_at": "2",
}
TUNE = {"id": "t", "fine_tuned_model": None, "status": "RUNNING"}
FILE = {"id": "f", "filename": "a.csv", "size": 3}
GONE = {"deleted": True}


def gets(path: str) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": None}


def posts(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


def does(method: str, path: str) -> dict[str, Any]:
    return {"route": path, "method": method, "body": None}


def v1_batch() -> Any:
    content = CreateBatchCompletionsRequestContent(prompts=["p"], max_new_tokens=1, temperature=0)
    return Completion.batch_create("o", CONFIG, content, priority="1", cpus=2)


def v2_batch() -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    chat = FilteredChatCompletionV2Request(messages=messages, logprobs=True)  # type: ignore[call-arg]  # any are sent
    return Completion.batch_create("o", CONFIG, [chat], use_v2=True, labels={"x": "y"}, gpus=1)


def tools() -> Any:
    return Completion.batch_create(
        output_data_path="o",
        model_config=CONFIG,
        input_data_path="i",
        data_parallelism=2,
        tool_config=ToolConfig(name="code_evaluator"),
    )


V1 = {"output_data_path": "o", "data_parallelism": 1, "max_runtime_sec": 86400}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
# The call, the job's input, the worker's answer, and some of what is returned.
CALLS: list[tuple[str, Callable[[], Any], dict[str, Any], Any, Callable[[Any], bool]]] = [
    (
        "batch v1",
        v1_batch,
        posts(
            "/v1/llm/batch-completions",
            V1
            | {"model_config": CONFIG_SENT}
            | {"content": {"prompts": ["p"], "max_new_tokens": 1, "temperature": 0.0}},
        ),
        {"job_id": "b"},
        lambda got: got.json() == '{"job_id": "b"}',
    ),
    (
        "batch v2",
        v2_batch,
        posts(
            BATCHES,
            V1 | {"model_config": CONFIG_SENT, "content": [CHAT], "labels": {"x": "y"}, "gpus": 1},
        ),
        JOB,
        lambda got: got.status == "queued" and got.dict()["model_config"] == {"model": "m"},
    ),
    (
        "batch with a tool",
        tools,
        posts(
            "/v1/llm/batch-completions",
            V1
            | {"model_config": CONFIG_SENT, "input_data_path": "i", "data_parallelism": 2}
            | {"tool_config": {"name": "code_evaluator"}},
        ),
        {"job_id": "b"},
        lambda got: got.job_id == "b",
    ),
    (
        "batch get",
        lambda: Completion.get_batch_completion("b/1"),
        gets(f"{BATCHES}/b%2F1"),
        {"job": JOB},
        lambda got: got["job"]["status"] == "queued",
    ),
    (
        "batch cancel",
        lambda: Completion.cancel_batch_completion("b"),
        does("POST", f"{BATCHES}/b/actions/cancel"),
        {"success": True},
        lambda got: got == {"success": True},
    ),
    (
        "fine-tune create",
        lambda: FineTune.create("m", "f", hyperparameters={"epochs": 1}, suffix="s"),
        posts(
            TUNES,
            {"model": "m", "training_file": "f", "hyperparameters": {"epochs": 1}, "suffix": "s"},
        ),
        {"id": "t"},
        lambda got: got.id == "t",
    ),
    (
        "fine-tune get",
        lambda: FineTune.get("t"),
        gets(f"{TUNES}/t"),
        TUNE,
        lambda got: got.status is BatchJobStatus.RUNNING,
    ),
    (
        "fine-tune events",
        lambda: FineTune.get_events("t"),
        gets(f"{TUNES}/t/events"),
        {"events": [{"timestamp": 1.5, "message": "x", "level": "info"}]},
        lambda got: got.events[0].message == "x",
    ),
    (
        "fine-tune list",
        FineTune.list,
        gets(TUNES),
        {"jobs": [TUNE]},
        lambda got: [job.id for job in got.jobs] == ["t"],
    ),
    (
        "fine-tune cancel",
        lambda: FineTune.cancel("t"),
        does("PUT", f"{TUNES}/t/cancel"),
        {"success": False},
        lambda got: str(got) == "success=False",
    ),
    (
        "model get",
        lambda: Model.get("org/m"),
        gets(f"{MODELS}/org/m"),
        MODEL,
        lambda got: got.source == "hugging_face",
    ),
    (
        "model list",
        Model.list,
        gets(MODELS),
        {"model_endpoints": [MODEL]},
        lambda got: [model.name for model in got.model_endpoints] == ["m"],
    ),
    (
        "model delete",
        lambda: Model.delete("a"),
        does("DELETE", f"{MODELS}/a"),
        GONE,
        lambda got: got.deleted is True,
    ),
    (
        "model download",
        lambda: Model.download("a"),
        posts(f"{MODELS}/download", {"model_name": "a", "download_format": "hugging_face"}),
        {"urls": {"a": "http://b"}},
        lambda got: got.urls == {"a": "http://b"},
    ),
    ("file get", lambda: File.get("f"), gets("/v1/files/f"), FILE, lambda got: got.size == 3),
    (
        "file list",
        File.list,
        gets("/v1/files"),
        {"files": [FILE]},
        lambda got: got.files[0].filename == "a.csv",
    ),
    (
        "file delete",
        lambda: File.delete("f"),
        does("DELETE", "/v1/files/f"),
        GONE,
        lambda got: got.deleted is True,
    ),
]


@pytest.mark.parametrize(
    ("call", "sent", "answer", "fits"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS]
)
async def test_a_call_is_one_job_and_its_answer_is_typed(
    endpoint: Scripted, call: Any, sent: dict[str, Any], answer: Any, fits: Any
) -> None:
    endpoint.yields = [answer]
    got = await asyncio.to_thread(call)
    assert endpoint.given == [sent]
    assert fits(got)


@pytest.mark.parametrize("mode", ["r", "rb"])
async def test_a_file_is_uploaded_as_text_or_bytes(
    endpoint: Scripted, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "é.csv").write_text("prompt,response\n")
    endpoint.yields = [{"id": "f"}]
    with (tmp_path / "é.csv").open(mode) as file:
        uploaded = await asyncio.to_thread(File.upload, file)  # type: ignore[arg-type]  # text, too
    assert uploaded.id == "f"
    body = endpoint.given[0]["openai_input"]
    assert endpoint.given[0]["openai_route"] == "/v1/files"
    assert body["filename"] == "é.csv"
    assert base64.b64decode(body["content_base64"]) == b"prompt,response\n"


async def test_what_is_open_in_memory_is_uploaded_under_a_name(endpoint: Scripted) -> None:
    endpoint.yields = [{"id": "f"}]
    await asyncio.to_thread(File.upload, io.BytesIO(b"a"))  # type: ignore[arg-type]  # scripts do
    body = endpoint.given[0]["openai_input"]
    assert (body["filename"], base64.b64decode(body["content_base64"])) == ("file", b"a")


async def test_a_files_text_is_downloaded(endpoint: Scripted) -> None:
    endpoint.yields = ["a,b\n"]
    got = await asyncio.to_thread(File.download, "f")
    assert got.dict() == {"id": "f", "content": "a,b\n"}
    assert endpoint.given[0]["openai_route"].startswith("/v1/files/f/content?offset=0")
