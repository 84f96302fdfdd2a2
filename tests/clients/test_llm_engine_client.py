"""Files and batches with scripts for Scale LLM Engine, each way that they reach a worker."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.processes.http_worker import KEY
from support.processes.llm_engine import Host


@pytest.fixture(scope="module")
def folder(host: Host) -> Path:
    """Return where the ways, which share a volume, write: nothing there is written over."""
    return host.volume / "out" / host.way


@pytest.fixture(scope="module")
def answers(host: Host) -> dict[str, Any]:
    """Return the answers that the script got."""
    return host.printed("batches", str(host.volume), f"out/{host.way}")


@pytest.fixture(scope="module")
def texts(llm_engine: Host, answers: dict[str, Any]) -> list[str]:
    """Return what the prompts' completions are outside of a batch."""
    direct = []
    for prompt in answers["prompts"]:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        url, headers = f"{llm_engine.url}/v1/completions", {"x-api-key": KEY}
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        direct.append(answer.json()["choices"][0]["text"])
    return direct


def test_a_file_is_uploaded_described_listed_read_and_deleted(answers: dict[str, Any]) -> None:
    files = answers["files"]
    content = files["content"]["content"]
    assert json.loads(content)["prompts"] == answers["prompts"]
    described = {"id": files["id"], "filename": "upload.json", "size": len(content)}
    assert files["get"] == described
    assert described in files["listed"]
    assert files["content"]["id"] == files["id"]
    assert files["deleted"]
    assert files["gone"]["error"] == "NotFoundError"


def test_v1_writes_completions_in_the_order_of_the_prompts(
    answers: dict[str, Any], folder: Path, texts: list[str]
) -> None:
    job = answers["v1"]
    assert job["status"] == "completed"
    assert job["output_data_path"] == f"out/{folder.name}/v1.json"
    assert job["metadata"]["team"] == "a"
    items = json.loads((folder / "v1.json").read_text())
    assert [item["text"] for item in items] == texts
    assert ["".join(token["token"] for token in item["tokens"]) for item in items] == texts
    assert {item["num_completion_tokens"] for item in items} == {4}


def test_v1_reads_an_uploaded_file(answers: dict[str, Any], folder: Path, texts: list[str]) -> None:
    job = answers["files"]["job"]
    assert (job["status"], job["input_data_path"]) == ("completed", answers["files"]["id"])
    items = json.loads((folder / "v1-file.json").read_text())
    assert [item["text"] for item in items] == texts
    assert all("tokens" not in item for item in items)


def test_v2_answers_chats_as_the_client_sends_them(answers: dict[str, Any], folder: Path) -> None:
    job = answers["v2 chats"]
    assert job["created"]["status"] in {"queued", "running"}
    assert (job["ended"]["status"], job["ended"]["priority"]) == ("completed", "3")
    items = json.loads((folder / "chats.json").read_text())
    assert [item["object"] for item in items] == ["chat.completion"] * len(answers["prompts"])


def test_v2_holds_an_answer_to_the_clients_schema(answers: dict[str, Any], folder: Path) -> None:
    assert answers["v2 schema"]["ended"]["status"] == "completed"
    (item,) = json.loads((folder / "schema.json").read_text())
    assert json.loads(item["choices"][0]["message"]["content"])["a"] in {"q", None}


def test_v2_reads_bodies_from_the_volume(
    answers: dict[str, Any], folder: Path, texts: list[str]
) -> None:
    assert answers["v2 completions"]["ended"]["status"] == "completed"
    items = json.loads((folder / "completions.json").read_text())
    assert [item["choices"][0]["text"] for item in items] == texts


def test_a_cancelled_job_keeps_what_was_answered(answers: dict[str, Any], folder: Path) -> None:
    cancelled = answers["cancelled"]
    assert cancelled["asked"]["success"]
    assert cancelled["ended"]["status"] == "cancelled"
    assert not cancelled["again"]["success"]
    items = json.loads((folder / "cancelled.json").read_text())
    assert len(items) == 500
    assert None in items


def test_refusals_are_the_errors_that_the_client_knows(answers: dict[str, Any]) -> None:
    assert answers["refused"]["error"] == "BadRequestError"
    assert answers["refused"]["message"].startswith("input_data_path: this worker fetches nothing")
    assert answers["unknown"]["error"] == "NotFoundError"
