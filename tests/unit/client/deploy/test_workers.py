"""`deploy status`, `logs` and `delete`."""

import io
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.runpod_api.endpoints import worker
from support.runpod_api.server import Fault, Runpod
from unit.client.conftest import CLIENT
from unit.client.deploy.conftest import Run, addresses

from llm_worker_client.deploy import workers
from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.workers import WorkerLog

SINCE = "--source container --since 2026-06-01T12:00:00Z"


def lines(count: int) -> list[dict[str, str]]:
    return [{"ts": f"{n:02}", "source": "container", "line": f"line {n}"} for n in range(count)]


@pytest.fixture(autouse=True)
def _add_endpoint(runpod: Runpod) -> None:
    """Add an endpoint with two workers."""
    runpod.add(name="chat", image="me/llm-worker:1", env={"HF_TOKEN": "planted-token-value"})
    runpod.workers = [worker("w1", "RUNNING"), worker("w2", "IDLE", stale=True)]


def test_status_lists_workers_and_jobs(run: Run, runpod: Runpod) -> None:
    runpod.jobs["job1"] = {}
    status, out, _ = run("status", "chat")
    assert (status, out.splitlines()) == (
        0,
        [
            "chat (ep1): me/llm-worker:1",
            "workers: 1 running, 1 idle (0 to 3)",
            "  w1: RUNNING",
            "  w2: IDLE, of an earlier version",
            "jobs: 1 inQueue",
        ],
    )


def test_status_is_json_for_programs(run: Run) -> None:
    status, out, _ = run("status", "chat", "--json")
    found = json.loads(out)
    assert (status, found["id"], found["bounds"]) == (0, "ep1", {"min": 0, "max": 3})
    assert (found["summary"]["running"], found["workers"][0]["id"]) == (1, "w1")
    assert found["jobs"]["inQueue"] == 0
    assert "planted" not in out


@pytest.mark.parametrize("words", [("status",), ("logs",), ("delete", "--yes")])
def test_an_unknown_name_is_an_error(run: Run, runpod: Runpod, words: tuple[str, ...]) -> None:
    expected = "there is no endpoint named other; those of the account: chat\n"
    assert run(words[0], "other", *words[1:]) == (1, "", expected)
    assert runpod.changes == []


def test_a_log_is_followed_across_reconnects_until_the_worker_is_removed(
    run: Run, runpod: Runpod
) -> None:
    runpod.log, runpod.workers = lines(7), runpod.workers[:1]
    status, out, err = run("logs", "chat")
    assert status == 0, err
    assert out.splitlines() == [f"line {n}" for n in range(7)]


def test_lines_with_the_same_timestamp_are_each_printed_once(run: Run, runpod: Runpod) -> None:
    runpod.log = [line | {"ts": "03"} for line in lines(2)]
    runpod.log += [line | {"ts": "04"} for line in lines(1)]
    _, out, _ = run("logs", "chat", "--worker", "w1")
    assert out.splitlines() == ["line 0", "line 1", "line 0"]


@pytest.mark.parametrize(
    ("words", "count"), [(f"--no-follow --tail 5 {SINCE}", 2), ("--no-follow --tail 1", 1)]
)
def test_following_a_log_can_be_disabled(run: Run, runpod: Runpod, words: str, count: int) -> None:
    runpod.log = lines(7)
    _, out, _ = run("logs", "chat", "--worker", "w1", *words.split())
    assert out.splitlines() == [f"line {n}" for n in range(count)]


def test_comments_do_not_keep_a_silent_log_open(
    api: Api, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second passes with every line of the stream.
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    runpod.log, runpod.pings = lines(2), True
    assert len([*WorkerLog(api, "ep1", "w1", {}).read_until_idle(60)]) == 2


def test_one_of_several_workers_has_to_be_named(run: Run, runpod: Runpod) -> None:
    expected = "--worker: which one? w1 (RUNNING), w2 (IDLE)\n"
    runpod.workers[1]["isStale"] = False
    assert run("logs", "chat") == (2, "", expected)
    runpod.workers.clear()
    status, _, err = run("logs", "chat")
    assert (status, "no worker is running" in err) == (1, True)


def test_a_log_that_cannot_be_reopened_ends_with_the_reason(run: Run, runpod: Runpod) -> None:
    runpod.log = lines(7)
    runpod.faults.append(Fault("GET", 403, path_end="/logs"))
    status, _, err = run("logs", "chat", "--worker", "w1")
    assert (status, "403 Forbidden" in err) == (1, True)


def test_a_closed_output_causes_no_traceback(runpod: Runpod) -> None:
    runpod.log = lines(2)
    words = [sys.executable, "-m", "llm_worker_client", "deploy", "logs", "chat", "--worker", "w1"]
    environ = os.environ | {"PYTHONPATH": str(CLIENT)}
    reading, writing = os.pipe()
    os.close(reading)
    command = [*words, *addresses(runpod)]
    result = subprocess.run(
        command, env=environ, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


def test_an_endpoint_is_deleted_by_its_name_or_if_ambiguous_by_its_id(
    run: Run, runpod: Runpod
) -> None:
    runpod.add(name="chat")
    runpod.add(name="other")
    status, _, err = run("delete", "chat", "--yes")
    assert (status, runpod.changes, "by its id: deploy delete <id>" in err) == (1, [], True)
    assert run("delete", "ep2", "--yes")[:2] == (0, "deleted: ep2\n")
    assert run("delete", "other", "--yes")[:2] == (0, "deleted: ep3\n")
    assert [*runpod.endpoints] == ["ep1"]


def test_nothing_is_deleted_without_a_terminal_for_the_confirmation(
    run: Run, runpod: Runpod
) -> None:
    status, _, err = run("delete", "chat")
    assert (status, runpod.changes, "--yes" in err) == (2, [], True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("reply", "remaining"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)]
)
def test_a_deletion_needs_a_confirmation(
    run: Run, runpod: Runpod, monkeypatch: pytest.MonkeyPatch, reply: str, remaining: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(reply))
    assert (run("delete", "chat")[0], len(runpod.endpoints)) == (remaining, remaining)


HOSTILE = "\x1b]0;pwned\x07\x9b2J\r"


@pytest.mark.parametrize(
    "words",
    [
        ("status", "ep2"),
        ("status", "ep2", "--json"),
        ("logs", "ep2", "--worker", "w1", "--no-follow"),
        # The names of all endpoints are in the message.
        ("status", "nope"),
    ],
)
def test_names_and_logs_of_others_do_not_control_the_terminal(
    run: Run, runpod: Runpod, words: tuple[str, ...]
) -> None:
    runpod.add(name=f"mine{HOSTILE}", image="me/llm-worker:1")
    runpod.log = [{"ts": "1", "source": "container", "line": f"a line{HOSTILE}"}]
    _, out, err = run(*words)
    assert "\\u001b]0;pwned\\u0007\\u009b2J\\r" in out + err
    assert not set("\x1b\x07\x9b\r") & set(out + err)
