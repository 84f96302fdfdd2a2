"""LLM Engine's classes in front of `make endpoint`: what they return of a real worker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.background import wait_until
from support.processes.client_proxy import ACCOUNT
from support.processes.local_endpoint import LocalEndpoint

from llm_worker_client import Completion, File, FineTune, Model, configure
from llm_worker_client.llm_engine import (
    CreateBatchCompletionsModelConfig,
    CreateBatchCompletionsRequestContent,
    FilteredChatCompletionV2Request,
    errors,
)

ASKED: dict[str, Any] = {
    "model": "demo",
    "prompt": "Once upon a time",
    "max_new_tokens": 3,
    "temperature": 0.0,
}
CONFIG = CreateBatchCompletionsModelConfig(model="demo")


@pytest.fixture(autouse=True)
def endpoint(make_endpoint: LocalEndpoint) -> Iterator[None]:
    configure("local", ACCOUNT, make_endpoint.api_url)
    yield
    configure()


def test_completions_are_the_same_whole_and_streamed() -> None:
    whole: Any = Completion.create(**ASKED)
    assert whole.output.num_completion_tokens == 3
    streamed: Any = Completion.create(**ASKED, stream=True)
    assert "".join(event.output.text for event in streamed) == whole.output.text

    async def texts() -> tuple[str, str]:
        answer: Any = await Completion.acreate(**ASKED)
        events: Any = await Completion.acreate(**ASKED, stream=True)
        return answer.output.text, "".join([event.output.text async for event in events])

    assert asyncio.run(texts()) == (whole.output.text,) * 2
    with pytest.raises(errors.NotFoundError):
        Completion.create(**{**ASKED, "model": "missing"})


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,response\nä,b\n")
    with (tmp_path / "a.csv").open("rb") as file:
        id = File.upload(file).id
    assert File.get(id).filename == "a.csv"
    assert File.download(id).content == "prompt,response\nä,b\n"
    assert id in [file.id for file in File.list().files]
    assert File.delete(id).deleted
    with pytest.raises(errors.NotFoundError):
        File.get(id)


@pytest.mark.parametrize("use_v2", [False, True])
def test_batches_run_by_themselves(use_v2: bool) -> None:
    content = CreateBatchCompletionsRequestContent(
        prompts=["a", "b"], max_new_tokens=3, temperature=0
    )
    chats = [FilteredChatCompletionV2Request(messages=[{"role": "user", "content": "Hi"}])]
    created = Completion.batch_create(
        f"out/classes-{use_v2}.json", CONFIG, chats if use_v2 else content, use_v2=use_v2
    )

    def status() -> str:
        found: str = Completion.get_batch_completion(created.job_id)["job"]["status"]
        return found

    wait_until(lambda: status() not in ("queued", "running"))
    assert status() == "completed"
    assert Completion.cancel_batch_completion(created.job_id) == {"success": False}


def test_models_and_fine_tunes_are_typed() -> None:
    assert "demo" in [model.name for model in Model.list().model_endpoints]
    assert Model.get("demo").inference_framework == "vllm"
    with pytest.raises(errors.BadRequestError, match="base model"):
        Model.delete("demo")
    assert isinstance(FineTune.list().jobs, list)
    with pytest.raises(errors.NotFoundError):
        FineTune.get("ftjob-missing")
