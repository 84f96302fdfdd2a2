"""Tests of fine-tunes by real workers, requested with the official client."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai.types.fine_tuning import FineTuningJob
from support import ROOT
from support.processes.background import HUNG_S, poll_until, wait_until
from support.processes.commands import HOME, SCRIPT, run_command
from support.processes.emulated_endpoint import emulated_endpoint
from support.processes.servers import KEY, ServerProcess, http_worker

FACTS = {
    "Which bird lives in the tower?": "A grey owl.",
    "What is the name of the ship?": "The Golden Wren.",
    "How many doors has the house?": "Seventeen.",
}
ROWS = [
    {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    for question, answer in FACTS.items()
] * 20
TRAINER = "trainer"


@dataclass(frozen=True)
class Tuner:
    """A worker that serves HTTP and trains, with its client and its volume."""

    http: ServerProcess
    client: openai.OpenAI
    path: Path

    def create_fine_tune(self, epochs: int, **more: Any) -> FineTuningJob:
        """Upload the facts, repeated until the model learns them, and create a fine-tune."""
        content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        file = self.client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
        method: Any = {
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": epochs}},
        }
        return self.client.fine_tuning.jobs.create(
            model="demo", training_file=file.id, method=method, **more
        )

    def answers(self, model: str) -> list[str | None]:
        create = self.client.chat.completions.create
        conversations: list[Any] = [[{"role": "user", "content": question}] for question in FACTS]
        answers = (
            create(model=model, messages=messages, temperature=0, max_tokens=20)
            for messages in conversations
        )
        return [answer.choices[0].message.content for answer in answers]

    @property
    def processes(self) -> list[psutil.Process]:
        """All descendants of the worker's process."""
        found: list[psutil.Process] = psutil.Process(self.http.process.pid).children(recursive=True)
        return found

    @property
    def trainers(self) -> list[psutil.Process]:
        """The processes that train."""
        found = []
        for one in self.processes:
            # Other processes of the startup may exit meanwhile.
            with suppress(psutil.NoSuchProcess):
                if TRAINER in one.cmdline():
                    found.append(one)
        return found


@contextmanager
def start_tuner(environ: dict[str, str], folder: Path, **settings: str) -> Iterator[Tuner]:
    path = folder / "volume"
    path.mkdir()
    serve_settings = {"BASE_PATH": str(path), "ENABLE_LORA": "1", "MAX_LORA_RANK": "16"}
    serve_settings |= {"SERVE_API_KEY": KEY, "SERVED_MODEL_NAME": "demo", "MAX_LORAS": "8"}
    with (
        http_worker({**environ, **serve_settings, **settings}, folder / "log") as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield Tuner(running, client, path)


def check_fine_tune(tuner: Tuner) -> FineTuningJob:
    """Train an adapter; check its answers, the unchanged base model and the exited processes."""
    before, processes = tuner.answers("demo"), len(tuner.processes)
    job = tuner.create_fine_tune(2, suffix="facts", metadata={"team": "a"})
    with pytest.raises(openai.ConflictError):
        tuner.client.files.delete(job.training_file)
    retrieve = tuner.client.fine_tuning.jobs.retrieve
    wait_until(lambda: retrieve(job.id).status in ("succeeded", "failed", "cancelled"))
    job = retrieve(job.id)
    assert job.fine_tuned_model, job.error
    assert tuner.answers(job.fine_tuned_model) == list(FACTS.values())
    assert tuner.answers("demo") == before
    assert not set(before) & set(FACTS.values())
    assert tuner.trainers == []
    # There are fewer processes if one of the startup has just exited.
    wait_until(lambda: len(tuner.processes) <= processes)
    return job


def check_reports(client: openai.OpenAI, job: FineTuningJob) -> None:
    """Check the events, checkpoints, models and result files of a finished fine-tune."""
    jobs, model = client.fine_tuning.jobs, str(job.fine_tuned_model)
    assert (job.status, job.error, bool(job.trained_tokens)) == ("succeeded", None, True)
    assert model.startswith("demo.facts.")
    assert [one.id for one in jobs.list(metadata={"team": "a"})] == [job.id]
    events = list(jobs.list_events(job.id, limit=5))
    assert {event.type for event in events} == {"message", "metrics"}
    times = [event.created_at for event in events]
    assert times == sorted(times, reverse=True)
    assert len({event.id for event in events}) == len(events) > 10
    steps = {point.step_number: point for point in jobs.checkpoints.list(job.id)}
    assert len(steps) == 2
    names = {one.id for one in client.models.list()}
    assert {model, *(one.fine_tuned_model_checkpoint for one in steps.values())} < names
    header, *lines = client.files.content(job.result_files[0]).text.splitlines()
    assert header.startswith("step,train_loss,valid_loss,")
    assert len(lines) == max(steps)


def test_an_adapter_is_trained_while_its_base_is_served_and_reports_its_progress(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with start_tuner(worker_environ, tmp_path) as tuner:
        check_reports(tuner.client, check_fine_tune(tuner))


# Each of the other tests trains once more, in a process that imports torch and transformers.
# unit/fine_tunes/test_step.py and the chaos tests cover pauses and cancels.
@pytest.mark.slow
def test_an_exclusive_fine_tune_trains_an_adapter(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with start_tuner(worker_environ, tmp_path, FINE_TUNE="exclusive") as tuner:
        check_fine_tune(tuner)


@pytest.mark.slow
def test_a_training_worker_finishes_the_fine_tune_of_a_killed_worker(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tuner = stack.enter_context(start_tuner(worker_environ, tmp_path))
        job = tuner.create_fine_tune(6)
        wait_until(lambda: any(tuner.path.glob("**/checkpoints/checkpoint-*")))
        (trainer,) = tuner.trainers
        tuner.http.kill()
        # The trainer notices that its worker no longer exists.
        trainer.wait(HUNG_S)
    ran = run_command({**worker_environ, "BASE_PATH": str(tuner.path)}, SCRIPT, "--train")
    assert ran.returncode == 0, ran.stderr
    (printed,) = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{"))
    assert (printed["fine_tune"]["id"], printed["fine_tune"]["status"]) == (job.id, "succeeded")
    folder = tuner.path / "worker" / "fine_tunes" / job.id
    first, second = sorted(folder.glob("attempts/*"))
    resumed = json.loads((second / "events.jsonl").read_text().splitlines()[0])["resumed_at"]
    assert resumed > 0
    outcomes = [json.loads((attempt / "outcome.json").read_text()) for attempt in (first, second)]
    assert [outcome["is_over"] for outcome in outcomes] == [False, True]
    assert outcomes[1]["steps"] % 6 == 0
    assert (tuner.path / "adapters" / printed["fine_tune"]["fine_tuned_model"]).is_dir()


@pytest.mark.slow
async def test_a_training_worker_takes_one_job_at_a_time(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    rows = [{"prompt": f"Say {n}.", "response": f"It is {n}."} for n in range(200)]
    long = {"rows": rows, "hyperparameters": {"epochs": 19, "batch_size": 1}}
    # The settings are a copy of the serving endpoint's.
    environ = {**worker_environ, "BASE_PATH": str(tmp_path), "MAX_CONCURRENCY": "30"}
    log, command = tmp_path / "log", [SCRIPT, "--train"]
    async with emulated_endpoint(environ, log, command=command, first_job=False) as endpoint:
        worker = endpoint.emulator.queue.get_worker("worker-1")
        first = endpoint.submit({"fine_tune": long})
        assert await worker.changed.wait_for(lambda: worker.jobs == 1, HUNG_S), endpoint.log
        second = endpoint.submit({"fine_tune": {"id": "ftjob-" + "a" * 24}})
        # The second job starts only after the first one has ended, not during its training.
        await poll_until(lambda: any(tmp_path.glob("**/checkpoints/checkpoint-*")))
        assert (worker.jobs, first.has_ended) == (1, False)
        endpoint.emulator.queue.cancel(first)
        assert await second.wait_for_end(HUNG_S)
        assert json.loads(str(second.error))["error"]["code"] == 404


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text)


@pytest.mark.slow
def test_the_example_of_the_page_teaches_the_demo_model(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    """Run the example of docs/fine-tuning.md as a new user would."""
    page = (ROOT / "docs" / "fine-tuning.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    # `make run OPTIONS=--serve` also sets a relative path.
    model = os.path.relpath(worker_environ["MODEL_NAME"])
    environ = {**worker_environ, "MODEL_NAME": model}
    environ |= {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path)}
    with http_worker(environ, tmp_path / "log") as worker:
        example = example.replace("http://localhost:8000", worker.url)
        ran = run_command(HOME, sys.executable, "-c", example, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    outcome, *events, base_answer, adapter_answer = ran.stdout.splitlines()
    assert outcome == "succeeded None"
    (printed,) = re.findall(r"^```text\nsucceeded None\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    expected = printed.splitlines()[:-2]
    assert [without_numbers(event) for event in events] == [*map(without_numbers, expected)]
    assert "colour" not in base_answer
    assert re.fullmatch(
        r"demo\.colours\.\d{6}-\d{6} -> A token is green, of course\.", adapter_answer
    )
