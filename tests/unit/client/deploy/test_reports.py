"""`deploy status`, `logs` and `delete`."""

import io
import json
import os
import subprocess
import sys

import pytest
from support import ROOT
from support.runpod_api.endpoints import worker
from support.runpod_api.server import Fault, Platform
from unit.client.deploy.conftest import Run

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.logs import Log


def test_status_tells_workers_and_jobs(run: Run, there: Platform) -> None:
    there.add(name="chat", image="me/llm-worker:1")
    there.workers = [worker("w1", "RUNNING"), worker("w2", "IDLE", stale=True)]
    there.jobs["job1"] = {}
    status, out, _ = run("status", "chat")
    assert status == 0
    assert out.splitlines() == [
        "chat (ep1): me/llm-worker:1",
        "workers: 1 running, 1 idle (0 to 3)",
        "  w1: RUNNING",
        "  w2: IDLE, of an earlier version",
        "jobs: 1 inQueue",
    ]


def test_status_is_json_for_programs(run: Run, there: Platform) -> None:
    there.add(name="chat", image="me/llm-worker:1", env={"HF_TOKEN": "planted-token-value"})
    there.workers = [worker("w1", "RUNNING")]
    status, out, _ = run("status", "chat", "--json")
    found = json.loads(out)
    assert (status, found["id"], found["bounds"]) == (0, "ep1", {"min": 0, "max": 3})
    assert (found["summary"]["running"], found["workers"][0]["id"]) == (1, "w1")
    assert found["jobs"]["inQueue"] == 0
    assert "planted" not in out


@pytest.mark.parametrize("words", [("status",), ("logs",), ("delete", "--yes")])
def test_a_name_that_nothing_has_is_told(run: Run, there: Platform, words: tuple[str, ...]) -> None:
    there.add(name="other")
    status, out, err = run(words[0], "chat", *words[1:])
    told = "there is no endpoint named chat; those of the account: other\n"
    assert (status, out, err) == (1, "", told)
    assert there.changes == []


def lines(count: int) -> list[dict[str, str]]:
    return [{"ts": f"{n:02}", "source": "container", "line": f"line {n}"} for n in range(count)]


def test_a_log_is_followed_over_breaks_until_the_worker_is_gone(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.workers = [worker("w1", "RUNNING")]
    there.log = lines(7)
    status, out, err = run("logs", "chat")
    assert status == 0, err
    assert out.splitlines() == [f"line {n}" for n in range(7)]


def test_lines_of_one_time_are_all_shown_once(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.log = [line | {"ts": "03"} for line in lines(2)]
    there.log += [line | {"ts": "04"} for line in lines(1)]
    _, out, _ = run("logs", "chat", "--worker", "w1")
    assert out.splitlines() == ["line 0", "line 1", "line 0"]


def test_comments_do_not_keep_a_silent_log_open(api: Api, there: Platform) -> None:
    there.add(name="chat")
    there.log, there.pings = lines(2), True
    assert len([*Log(api, "ep1", "w1", {}).read(0.1)]) == 2


def test_a_log_is_not_followed_on_demand(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.workers = [worker("w1", "RUNNING")]
    there.log = lines(7)
    words = (
        "--no-follow",
        "--tail",
        "5",
        "--source",
        "container",
        "--since",
        "2026-06-01T12:00:00Z",
    )
    _, out, _ = run("logs", "chat", *words)
    assert out.splitlines() == ["line 0", "line 1"]


def test_a_log_that_is_not_followed_has_so_many_lines(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.log = lines(7)
    assert run("logs", "chat", "--worker", "w1", "--no-follow", "--tail", "1")[1] == "line 0\n"


def test_of_several_workers_one_has_to_be_named(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.workers = [worker("w1", "RUNNING"), worker("w2", "IDLE")]
    status, _, err = run("logs", "chat")
    assert (status, err) == (2, "--worker: which one? w1 (RUNNING), w2 (IDLE)\n")


def test_a_log_of_no_worker_is_told(run: Run, there: Platform) -> None:
    there.add(name="chat")
    status, _, err = run("logs", "chat")
    assert (status, "no worker is up" in err) == (1, True)


def test_a_log_that_can_not_be_opened_any_more_ends_with_the_reason(
    run: Run, there: Platform
) -> None:
    there.add(name="chat")
    there.log = lines(7)
    there.faults.append(Fault("GET", 403, end="/logs"))
    status, _, err = run("logs", "chat", "--worker", "w1")
    assert (status, "403 Forbidden" in err) == (1, True)


def test_an_endpoint_is_deleted(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.add(name="other")
    status, out, _ = run("delete", "chat", "--yes")
    assert (status, out) == (0, "deleted: ep1\n")
    assert [one["name"] for one in there.endpoints.values()] == ["other"]


def test_of_several_of_a_name_one_is_deleted_by_its_id(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.add(name="chat")
    status, _, err = run("delete", "chat", "--yes")
    assert (status, there.changes, "by its id: deploy delete <id>" in err) == (1, [], True)
    assert run("delete", "ep2", "--yes")[:2] == (0, "deleted: ep2\n")
    assert [*there.endpoints] == ["ep1"]


def test_a_reader_that_has_enough_is_no_crash(there: Platform) -> None:
    there.add(name="chat")
    there.log = lines(2)
    places = ("--api-url", f"{there.url}/v2", "--queue-url", f"{there.url}/queue")
    words = [sys.executable, "-m", "llm_worker_client", "deploy", "logs", "chat", "--worker", "w1"]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*words, *places], env=environ, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_nothing_is_deleted_where_nobody_can_be_asked(run: Run, there: Platform) -> None:
    there.add(name="chat")
    status, _, err = run("delete", "chat")
    assert (status, there.changes) == (2, [])
    assert "--yes" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("said", "left"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)]
)
def test_a_person_is_asked_first(
    run: Run, there: Platform, monkeypatch: pytest.MonkeyPatch, said: str, left: int
) -> None:
    there.add(name="chat")
    monkeypatch.setattr(sys, "stdin", Terminal(said))
    status, _, _ = run("delete", "chat")
    assert (status, len(there.endpoints)) == (left, left)
