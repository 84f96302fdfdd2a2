"""What callers learn of a start that failed."""

import json

import pytest

from worker.errors import MachineUnfit, StartFailed
from worker.failed_start import FailedStart, answers, without_paths
from worker.settings.mistakes import Mistake, SettingsError
from worker.store import Wanted
from worker.store.refusals import Reason, Unavailable

WANTED = Wanted("org/model", setting="MODEL_NAME")


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (StartFailed("the context is too long"), True),
        (SettingsError([Mistake("MODEL_NAME", None, "it is required")]), True),
        (Unavailable(WANTED, Reason.MISSING), True),
        (Unavailable(WANTED, Reason.NO_SPACE), True),
        (Unavailable(WANTED, Reason.FULL_DISK), False),
        (Unavailable(WANTED, Reason.UNREACHABLE), False),
        (MachineUnfit("the GPU has fallen off the bus"), False),
    ],
)
def test_callers_learn_of_what_would_fail_on_every_worker(
    error: StartFailed, answered: bool
) -> None:
    assert answers(error, {}) is answered
    assert not answers(error, {"ANSWER_FAILED_START": "off"})


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
def test_of_a_path_the_last_name_is_left(message: str, expected: str | None) -> None:
    assert without_paths(message) == (expected or message)


async def test_every_job_fails_with_the_message_and_is_not_to_be_sent_again() -> None:
    failed = FailedStart(Unavailable(WANTED, Reason.MISSING))
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
