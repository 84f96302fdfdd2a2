"""Responses to jobs after a failed startup."""

import json

import pytest

from worker.errors import MachineUnfit, StartFailed
from worker.failed_start import FailedStartHandler, shorten_paths, should_answer_callers
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
    error: StartFailed, answers_jobs: bool
) -> None:
    assert should_answer_callers(error, {}) is answers_jobs
    assert not should_answer_callers(error, {"ANSWER_FAILED_START": "off"})


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
