"""Files, batches and fine-tunes with scripts for Scale LLM Engine, each way to a worker."""

import ast
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.processes.background import HUNG_S
from support.processes.http_worker import KEY
from support.processes.llm_engine import Host


@pytest.fixture(scope="module")
def folder(scripts_host: Host) -> Path:
    """Return where the ways, which share a volume, write: nothing there is written over."""
    return scripts_host.volume / "out" / scripts_host.way


@pytest.fixture(scope="module")
def answers(scripts_host: Host) -> dict[str, Any]:
    """Return the answers that the script got."""
    return scripts_host.printed("batches", str(scripts_host.volume), f"out/{scripts_host.way}")


@pytest.fixture(scope="module")
def texts(llm_engine_worker: Host, answers: dict[str, Any]) -> list[str]:
    """Return what the prompts' completions are outside of a batch."""

    def text(prompt: str) -> str:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        url, headers = f"{llm_engine_worker.url}/v1/completions", {"x-api-key": KEY}
        answer = httpx.post(url, json=body, headers=headers, timeout=HUNG_S)
        found: str = answer.json()["choices"][0]["text"]
        return found

    return [text(prompt) for prompt in answers["prompts"]]


def test_a_file_is_uploaded_described_listed_read_and_deleted(answers: dict[str, Any]) -> None:
    files = answers["files"]
    content = files["content"]["content"]
    assert json.loads(content)["prompts"] == answers["prompts"]
    described = {"id": files["id"], "filename": "upload.json", "size": len(content)}
    assert files["get"] == described
    assert described in files["listed"]
    assert files["content"]["id"] == files["id"]
    assert (files["deleted"], files["gone"]["error"]) == (True, "NotFoundError")


def test_v1_writes_completions_in_the_order_of_the_prompts(
    answers: dict[str, Any], folder: Path, texts: list[str]
) -> None:
    job = answers["v1"]
    assert (job["status"], job["metadata"]["team"]) == ("completed", "a")
    assert job["output_data_path"] == f"out/{folder.name}/v1.json"
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
    *chats, held = json.loads((folder / "chats.json").read_text())
    assert [item["object"] for item in chats] == ["chat.completion"] * len(answers["prompts"])
    # To the client's schema.
    assert json.loads(held["choices"][0]["message"]["content"])["a"] in {"q", None}


def test_v2_reads_bodies_from_the_volume(
    answers: dict[str, Any], folder: Path, texts: list[str]
) -> None:
    assert answers["v2 completions"]["ended"]["status"] == "completed"
    items = json.loads((folder / "completions.json").read_text())
    assert [item["choices"][0]["text"] for item in items] == texts


def test_a_cancelled_job_keeps_what_was_answered(answers: dict[str, Any], folder: Path) -> None:
    cancelled = answers["cancelled"]
    assert (cancelled["asked"]["success"], cancelled["again"]["success"]) == (True, False)
    assert cancelled["ended"]["status"] == "cancelled"
    items = json.loads((folder / "cancelled.json").read_text())
    assert (len(items), None in items) == (500, True)


def test_a_refused_input_is_the_error_that_the_client_knows(answers: dict[str, Any]) -> None:
    refusal = answers["refused"]
    assert refusal["error"] == "BadRequestError"
    assert refusal["message"].startswith("input_data_path: this worker fetches nothing")


# Fine-tunes:

TAUGHT = "The red code."


@pytest.fixture(scope="module")
def tuned_job(scripts_host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answers that the script got."""
    folder: Path = tmp_path_factory.mktemp("fine-tunes")
    return scripts_host.printed("fine_tunes", cwd=folder)


def test_rows_become_an_adapter_that_answers_by_its_name(tuned_job: dict[str, Any]) -> None:
    trained = tuned_job["trained"]
    name = trained["found"]["fine_tuned_model"]
    assert (trained["found"]["id"], trained["found"]["status"]) == (trained["id"], "SUCCESS")
    assert name.startswith("demo.my-experiment.")
    assert name in trained["models"]
    assert trained["listed"][0] == trained["id"]
    assert trained["texts"][name] == TAUGHT != trained["texts"]["demo"]
    # The best and the other epochs'.
    assert trained["deleted"] == [True] * 3


def test_events_have_the_losses_as_its_trainer_does(tuned_job: dict[str, Any]) -> None:
    events = tuned_job["trained"]["events"]
    assert {event["level"] for event in events} <= {"info", "warn"}
    metrics = [ast.literal_eval(one["message"]) for one in events if one["message"][0] == "{"]
    losses = [one["loss"] for one in metrics if "loss" in one]
    assert losses[-1] < losses[0]
    assert sum("eval_loss" in one for one in metrics) >= 3
    assert all(event["timestamp"] for event in events)


def test_one_is_cancelled_unless_it_has_ended(tuned_job: dict[str, Any]) -> None:
    assert tuned_job["trained"]["late cancel"] is False
    assert tuned_job["cancelled"] == {"success": True, "status": "CANCELLED"}


def test_what_is_wrong_is_refused_with_the_clients_errors(tuned_job: dict[str, Any]) -> None:
    assert tuned_job["no file"]["error"] == "NotFoundError"
    assert tuned_job["no name"]["error"] == "BadRequestError"
    assert "did you mean 'hyperparameters.epochs'?" in tuned_job["no name"]["message"]
