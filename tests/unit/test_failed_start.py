"""Responses to jobs after a failed startup."""

import json
import tempfile
import time
from pathlib import Path

import pytest

from worker.errors import MachineUnfit, StartFailed
from worker.failed_start import (
    FAILURES_S,
    FailedStartHandler,
    forget_failures,
    shorten_paths,
    should_answer_callers,
)
from worker.settings.mistakes import Mistake, SettingsError
from worker.store import Artifact
from worker.store.refusals import ModelUnavailable, Reason

MODEL = Artifact("org/model", setting="MODEL_NAME")


@pytest.mark.parametrize(
    ("error", "answers_jobs"),
    [
        (StartFailed("the context is too long"), True),
        (SettingsError([Mistake("MODEL_NAME", None, "it is required")]), True),
        (ModelUnavailable(MODEL, Reason.MISSING), True),
        (ModelUnavailable(MODEL, Reason.NO_SPACE), True),
        (ModelUnavailable(MODEL, Reason.FULL_DISK), False),
        (ModelUnavailable(MODEL, Reason.UNREACHABLE), False),
        (MachineUnfit("the GPU has fallen off the bus"), False),
    ],
)
def test_jobs_are_answered_with_failures_that_every_worker_would_have(
    error: StartFailed, answers_jobs: bool, tmp_path: Path
) -> None:
    volume = {"BASE_PATH": str(tmp_path)}
    assert should_answer_callers(error, volume) is answers_jobs
    assert not should_answer_callers(error, {"ANSWER_FAILED_START": "off", **volume})


def fail(tmp_path: Path, message: str, model: str = "org/model") -> bool:
    settings = {"BASE_PATH": str(tmp_path), "MODEL_NAME": model}
    return should_answer_callers(MachineUnfit(message), settings)


def test_jobs_are_answered_after_three_starts_that_failed_in_the_same_way(tmp_path: Path) -> None:
    # Two messages about the same failure have other numbers, and other paths.
    same = ["CUDA error in /a/1.py, pid=7", "CUDA error in /b/1.py, pid=8"]
    assert [fail(tmp_path, message) for message in same] == [False, False]
    assert not fail(tmp_path, "the driver is too old")
    assert not fail(tmp_path, same[0], model="org/other")
    assert fail(tmp_path, same[0])
    assert fail(tmp_path, same[1])


def test_failures_before_a_start_that_succeeded_do_not_count(tmp_path: Path) -> None:
    assert [fail(tmp_path, "a crash") for _ in range(2)] == [False, False]
    forget_failures({"BASE_PATH": str(tmp_path), "MODEL_NAME": "org/model"})
    assert [fail(tmp_path, "a crash") for _ in range(3)] == [False, False, True]


def test_failures_of_an_earlier_hour_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [fail(tmp_path, "a crash") for _ in range(2)] == [False, False]
    later = time.time() + FAILURES_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert not fail(tmp_path, "a crash")


def test_without_a_volume_the_failures_of_the_machine_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert [fail(tmp_path / "no volume", "a crash") for _ in range(3)] == [False, False, True]


def test_a_disk_that_can_not_be_written_to_prevents_nothing(tmp_path: Path) -> None:
    (tmp_path / "worker").touch()
    assert [fail(tmp_path, "a crash") for _ in range(4)] == [False] * 4


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("/runpod-volume/models/a: config.json is missing", "…/a: config.json is missing"),
        ("./secret/dir/x is empty", "…/x is empty"),
        ("../x and ~root/secret/y", "…/x and …/y"),
        ("CUSTOM_CHAT_TEMPLATE=file:///root/secret/x.jinja", "CUSTOM_CHAT_TEMPLATE=…/x.jinja"),
        ("'file://localhost/root/x.jinja'", "'…/x.jinja'"),
        ("'/runpod-volume/my models/llama': no such", "'…/llama': no such"),
        ('one of "/a b/c d/", "/e"', 'one of "…/c d", "…/e"'),
        ("/mnt/a,b/c/d, /mnt/e:f/g: both", "…/d, …/g: both"),
        ("vLLM's own /a/b isn't it", "vLLM's own …/b isn't it"),
        ("downloaded to /data/hub/, where 1 GB", "downloaded to …/hub, where 1 GB"),
        ("org/model: see https://huggingface.co/org/model", None),
        ("see https://huggingface.co//root/secret/x/tree/main", "see …/main"),
        ("s3://bucket/model's 'https://a.example.com/b c'", None),
        ("10 GB/s, 1/2 and and/or", None),
    ],
)
def test_a_path_is_shortened_to_its_last_name(message: str, expected: str | None) -> None:
    assert shorten_paths(message) == (expected or message)


async def test_every_job_fails_with_the_message_and_is_not_retryable() -> None:
    failed = FailedStartHandler(ModelUnavailable(MODEL, Reason.MISSING))
    (chunk,) = [one async for one in failed.handle({"id": "job-1", "input": {"batch": {}}})]
    error = json.loads(chunk["error"])["error"]
    assert "the hub has no such repository" in error.pop("message")
    assert error == {
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
        "retryable": False,
        "request_id": "job-1",
    }
