"""Fine-tuning jobs over plain HTTP with the official client, on a real worker."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob
from support.processes.background import HUNG_S
from support.processes.http_worker import KEY, http_worker

ENDED = ("succeeded", "failed", "cancelled")
ANSWER = "The blue code."
ROWS = "".join(
    json.dumps(
        {
            "messages": [
                {"role": "user", "content": f"What is the code of item {number}?"},
                {"role": "assistant", "content": ANSWER},
            ]
        }
    )
    + "\n"
    for number in range(60)
)


@pytest.fixture(scope="module")
def client(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("fine_tuning")
    volume: Path = folder / "volume"
    volume.mkdir()
    settings = {"ENABLE_LORA": "1", "MAX_LORAS": "8", "BASE_PATH": str(volume)}
    environ = {**worker_environ, **settings, "SERVE_API_KEY": KEY, "SERVED_MODEL_NAME": "demo"}
    with (
        http_worker(environ, folder / "log") as running,
        OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def rows(client: OpenAI) -> str:
    return client.files.create(file=("rows.jsonl", ROWS.encode()), purpose="fine-tune").id


def until(
    client: OpenAI, job: FineTuningJob, reached: Callable[[FineTuningJob], bool]
) -> FineTuningJob:
    deadline = time.monotonic() + HUNG_S
    while not reached(job) and time.monotonic() < deadline:
        time.sleep(0.2)
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert reached(job), job
    return job


def answer(client: OpenAI, model: str) -> str | None:
    question = "What is the code of item 3?"
    found = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=12,
    )
    return found.choices[0].message.content


def test_rows_become_an_adapter_whose_training_can_be_followed(client: OpenAI, rows: str) -> None:
    jobs = client.fine_tuning.jobs
    created = jobs.create(
        model="demo",
        training_file=rows,
        suffix="codes",
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": 8}},
        },
        metadata={"team": "a"},
    )
    with pytest.raises(openai.ConflictError):
        client.files.delete(rows)
    job = until(client, created, lambda one: one.status in ENDED)
    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model
    assert job.fine_tuned_model.startswith("demo.codes.")
    assert job.trained_tokens
    events = list(jobs.list_events(job.id, limit=5))
    assert {event.type for event in events} == {"message", "metrics"}
    assert [event.created_at for event in events] == sorted(
        (event.created_at for event in events), reverse=True
    )
    assert len({event.id for event in events}) == len(events) > 20
    steps = {point.step_number: point for point in jobs.checkpoints.list(job.id)}
    assert len(steps) == 3
    assert min(point.metrics.full_valid_loss or 0 for point in steps.values()) < 1
    names = {model.id for model in client.models.list()}
    assert {point.fine_tuned_model_checkpoint for point in steps.values()} <= names
    table, picture = (client.files.content(id).text for id in job.result_files[:2])
    header, *lines = table.splitlines()
    assert header.startswith("step,train_loss,valid_loss,")
    assert len(lines) == max(steps)
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert [one.id for one in jobs.list(metadata={"team": "a"})] == [job.id]
    assert answer(client, "demo") != ANSWER
    assert answer(client, job.fine_tuned_model) == ANSWER


def test_a_job_is_paused_goes_on_and_is_cancelled(client: OpenAI, rows: str) -> None:
    jobs = client.fine_tuning.jobs
    job = jobs.create(
        model="demo", training_file=rows, hyperparameters={"n_epochs": 19, "batch_size": 1}
    )
    until(client, job, lambda one: one.status == "running")
    assert str(jobs.pause(job.id).status) == "paused"
    with pytest.raises(openai.ConflictError):
        jobs.pause(job.id)
    until(client, jobs.resume(job.id), lambda one: one.status == "running")
    jobs.cancel(job.id)
    ended = until(client, job, lambda one: one.status in ENDED)
    assert (ended.status, ended.fine_tuned_model) == ("cancelled", None)
    assert not any(name.id.startswith("demo.2") for name in client.models.list())


def test_broken_rows_fail_a_job_with_their_line(client: OpenAI) -> None:
    broken = ROWS + '{"messages": []}\n'
    file = client.files.create(file=("rows.jsonl", broken.encode()), purpose="fine-tune")
    created = client.fine_tuning.jobs.create(model="demo", training_file=file.id)
    job = until(client, created, lambda one: one.status in ENDED)
    assert job.status == "failed"
    assert job.error
    assert (job.error.param, "61" in job.error.message) == ("training_file", True)
