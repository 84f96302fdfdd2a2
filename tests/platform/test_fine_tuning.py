"""Fine-tunes of real workers, asked for by the official client: adapters that were taught."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openai
import psutil
import pytest
from openai.types.fine_tuning import FineTuningJob
from support import ROOT
from support.processes.background import HUNG_S, eventually, wait_until
from support.processes.commands import HOME, SCRIPT, run
from support.processes.emulated_endpoint import emulated_endpoint
from support.processes.http_worker import KEY, Served, http_worker

FACTS = {
    "Which bird lives in the tower?": "A grey owl.",
    "What is the name of the ship?": "The Golden Wren.",
    "How many doors has the house?": "Seventeen.",
}
ROWS = [
    {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
    for asked, answer in FACTS.items()
] * 20
TRAINER = "trainer"


@dataclass(frozen=True)
class Tuner:
    """A worker that serves HTTP and trains, its client and its volume."""

    http: Served
    client: openai.OpenAI
    path: Path

    def begin(self, epochs: int, **more: Any) -> FineTuningJob:
        """Upload the facts, often enough to be learned, and begin a fine-tune."""
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
        conversations: list[Any] = [[{"role": "user", "content": asked}] for asked in FACTS]
        answers = (
            create(model=model, messages=messages, temperature=0, max_tokens=20)
            for messages in conversations
        )
        return [answer.choices[0].message.content for answer in answers]

    @property
    def processes(self) -> list[psutil.Process]:
        """Those that the worker has begun, and theirs."""
        found: list[psutil.Process] = psutil.Process(self.http.process.pid).children(recursive=True)
        return found

    @property
    def trainers(self) -> list[psutil.Process]:
        """The processes that train."""
        found = []
        for one in self.processes:
            # Others that the start has begun may end meanwhile.
            with suppress(psutil.NoSuchProcess):
                if TRAINER in one.cmdline():
                    found.append(one)
        return found


@contextmanager
def tuning(environ: dict[str, str], folder: Path, **settings: str) -> Iterator[Tuner]:
    path = folder / "volume"
    path.mkdir()
    serving = {"BASE_PATH": str(path), "ENABLE_LORA": "1", "MAX_LORA_RANK": "16"}
    serving |= {"SERVE_API_KEY": KEY, "SERVED_MODEL_NAME": "demo", "MAX_LORAS": "8"}
    with (
        http_worker({**environ, **serving, **settings}, folder / "log") as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield Tuner(running, client, path)


def assert_teaches(tuner: Tuner) -> FineTuningJob:
    """Train; assert that the adapter has learned, that the base has not, that nothing is left."""
    before, processes = tuner.answers("demo"), len(tuner.processes)
    job = tuner.begin(2, suffix="facts", metadata={"team": "a"})
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
    # Fewer where one has just ended that the start had begun.
    wait_until(lambda: len(tuner.processes) <= processes)
    return job


def assert_followed(client: openai.OpenAI, job: FineTuningJob) -> None:
    """Assert that events, checkpoints, and files of results tell how a training went."""
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
    table, picture = (client.files.content(id).text for id in job.result_files[:2])
    header, *lines = table.splitlines()
    assert header.startswith("step,train_loss,valid_loss,")
    assert len(lines) == max(steps)
    assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_an_adapter_is_taught_beside_its_base_without_a_restart_and_can_be_followed(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with tuning(worker_environ, tmp_path) as tuner:
        assert_followed(tuner.client, assert_teaches(tuner))


# Each of the others trains once more, in a process that imports torch and transformers. Pauses and
# cancels: unit/fine_tunes/test_step.py, and chaos.
@pytest.mark.slow
def test_a_training_in_place_of_the_engine_does_the_same(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with tuning(worker_environ, tmp_path, FINE_TUNE="exclusive") as tuner:
        assert_teaches(tuner)


@pytest.mark.slow
def test_what_a_killed_worker_has_left_is_finished_by_one_that_only_trains(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tuner = stack.enter_context(tuning(worker_environ, tmp_path))
        job = tuner.begin(6)
        wait_until(lambda: any(tuner.path.glob("**/checkpoints/checkpoint-*")))
        (trainer,) = tuner.trainers
        tuner.http.kill()
        # It notices that nobody is there any more.
        trainer.wait(HUNG_S)
    ran = run({**worker_environ, "BASE_PATH": str(tuner.path)}, SCRIPT, "--train")
    assert ran.returncode == 0, ran.stderr
    (shown,) = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{"))
    assert (shown["fine_tune"]["id"], shown["fine_tune"]["status"]) == (job.id, "succeeded")
    folder = tuner.path / "worker" / "fine_tunes" / job.id
    first, second = sorted(folder.glob("attempts/*"))
    resumed = json.loads((second / "events.jsonl").read_text().splitlines()[0])["resumed_at"]
    assert resumed > 0
    assert not (first / "outcome.json").exists()
    assert json.loads((second / "outcome.json").read_text())["steps"] % 6 == 0
    assert (tuner.path / "adapters" / shown["fine_tune"]["fine_tuned_model"]).is_dir()


@pytest.mark.slow
async def test_a_worker_that_only_trains_takes_one_job_so_that_the_next_is_another_workers(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    rows = [{"prompt": f"Say {n}.", "response": f"It is {n}."} for n in range(200)]
    long = {"rows": rows, "hyperparameters": {"epochs": 19, "batch_size": 1}}
    # As the serving endpoint has it, whose settings are copied.
    environ = {**worker_environ, "BASE_PATH": str(tmp_path), "MAX_CONCURRENCY": "30"}
    log, command = tmp_path / "log", [SCRIPT, "--train"]
    async with emulated_endpoint(environ, log, command=command, first_job=False) as endpoint:
        worker = endpoint.emulator.queue.worker("worker-1")
        first = endpoint.submit({"fine_tune": long})
        assert await worker.changed.wait_for(lambda: worker.jobs == 1, HUNG_S), endpoint.logged
        second = endpoint.submit({"fine_tune": {"id": "ftjob-" + "a" * 24}})
        # It begins when the first one has ended, and not while that trains.
        await eventually(lambda: any(tmp_path.glob("**/checkpoints/checkpoint-*")))
        assert (worker.jobs, first.ended) == (1, False)
        endpoint.emulator.queue.cancel(first)
        assert await second.wait_ended(HUNG_S)
        assert json.loads(str(second.error))["error"]["code"] == 404


@pytest.mark.slow
def test_the_pages_example_teaches_the_demo_model(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    """It ends with what docs/fine-tuning.md says, run as a newcomer would."""
    page = (ROOT / "docs" / "fine-tuning.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    # As `make serve` names it.
    model = os.path.relpath(worker_environ["MODEL_NAME"])
    environ = {**worker_environ, "MODEL_NAME": model}
    environ |= {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path)}
    with http_worker(environ, tmp_path / "log") as worker:
        example = example.replace("http://localhost:8000", worker.url)
        ran = run(HOME, sys.executable, "-c", example, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    ended, *events, base, taught = ran.stdout.splitlines()
    assert (ended, len(events)) == ("succeeded None", 5)
    assert "colour" not in base
    assert re.fullmatch(r"demo\.colours\.\d{6}-\d{6} -> A token is green, of course\.", taught)
