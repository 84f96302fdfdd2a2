"""`deploy status`, `logs` and `delete`."""

import io
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import ROOT
from support.runpod_api.endpoints import worker
from support.runpod_api.server import Fault, Runpod
from unit.client.deploy.conftest import Run, addresses

from llm_worker_client.deploy import api as deploy_api
from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.workers import Log

SINCE = "--source container --since 2026-06-01T12:00:00Z"


def lines(count: int) -> list[dict[str, str]]:
    return [{"ts": f"{n:02}", "source": "container", "line": f"line {n}"} for n in range(count)]


@pytest.fixture(autouse=True)
def _endpoint(runpod: Runpod) -> None:
    """Have an endpoint with two workers."""
    runpod.add(name="chat", image="me/llm-worker:1", env={"HF_TOKEN": "planted-token-value"})
    runpod.workers = [worker("w1", "RUNNING"), worker("w2", "IDLE", stale=True)]


def test_status_tells_workers_and_jobs(run: Run, runpod: Runpod) -> None:
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
def test_a_name_that_nothing_has_is_told(run: Run, runpod: Runpod, words: tuple[str, ...]) -> None:
    told = "there is no endpoint named other; those of the account: chat\n"
    assert run(words[0], "other", *words[1:]) == (1, "", told)
    assert runpod.changes == []


def test_a_log_is_followed_over_breaks_until_the_worker_is_gone(run: Run, runpod: Runpod) -> None:
    runpod.log, runpod.workers = lines(7), runpod.workers[:1]
    status, out, err = run("logs", "chat")
    assert status == 0, err
    assert out.splitlines() == [f"line {n}" for n in range(7)]


def test_lines_of_one_time_are_all_shown_once(run: Run, runpod: Runpod) -> None:
    runpod.log = [line | {"ts": "03"} for line in lines(2)]
    runpod.log += [line | {"ts": "04"} for line in lines(1)]
    _, out, _ = run("logs", "chat", "--worker", "w1")
    assert out.splitlines() == ["line 0", "line 1", "line 0"]


@pytest.mark.parametrize(
    ("words", "count"), [(f"--no-follow --tail 5 {SINCE}", 2), ("--no-follow --tail 1", 1)]
)
def test_a_log_is_not_followed_on_demand(run: Run, runpod: Runpod, words: str, count: int) -> None:
    runpod.log = lines(7)
    _, out, _ = run("logs", "chat", "--worker", "w1", *words.split())
    assert out.splitlines() == [f"line {n}" for n in range(count)]


def test_comments_do_not_keep_a_silent_log_open(
    api: Api, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second passes with every line of the stream.
    monkeypatch.setattr(deploy_api, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    runpod.log, runpod.pings = lines(2), True
    assert len([*Log(api, "ep1", "w1", {}).read(60)]) == 2


def test_of_several_workers_one_has_to_be_named(run: Run, runpod: Runpod) -> None:
    told = "--worker: which one? w1 (RUNNING), w2 (IDLE)\n"
    runpod.workers[1]["isStale"] = False
    assert run("logs", "chat") == (2, "", told)
    runpod.workers.clear()
    status, _, err = run("logs", "chat")
    assert (status, "no worker is up" in err) == (1, True)


def test_a_log_that_can_not_be_opened_again_ends_with_the_reason(run: Run, runpod: Runpod) -> None:
    runpod.log = lines(7)
    runpod.faults.append(Fault("GET", 403, end="/logs"))
    status, _, err = run("logs", "chat", "--worker", "w1")
    assert (status, "403 Forbidden" in err) == (1, True)


def test_a_reader_that_has_enough_is_no_crash(runpod: Runpod) -> None:
    runpod.log = lines(2)
    words = [sys.executable, "-m", "llm_worker_client", "deploy", "logs", "chat", "--worker", "w1"]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    reading, writing = os.pipe()
    os.close(reading)
    command = [*words, *addresses(runpod)]
    done = subprocess.run(command, env=environ, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_one_is_deleted_by_its_name_or_if_several_by_its_id(run: Run, runpod: Runpod) -> None:
    runpod.add(name="chat")
    runpod.add(name="other")
    status, _, err = run("delete", "chat", "--yes")
    assert (status, runpod.changes, "by its id: deploy delete <id>" in err) == (1, [], True)
    assert run("delete", "ep2", "--yes")[:2] == (0, "deleted: ep2\n")
    assert run("delete", "other", "--yes")[:2] == (0, "deleted: ep3\n")
    assert [*runpod.endpoints] == ["ep1"]


def test_nothing_is_deleted_where_nobody_can_be_asked(run: Run, runpod: Runpod) -> None:
    status, _, err = run("delete", "chat")
    assert (status, runpod.changes, "--yes" in err) == (2, [], True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("said", "left"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)]
)
def test_a_person_is_asked_first(
    run: Run, runpod: Runpod, monkeypatch: pytest.MonkeyPatch, said: str, left: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(said))
    assert (run("delete", "chat")[0], len(runpod.endpoints)) == (left, left)
