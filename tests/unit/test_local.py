"""Local runs of the worker, without the platform."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.engine.scripted import (
    ScriptedEngine,
    chat_job,
    event,
    raw_job,
    tokens,
    worker,
    yields_of,
)
from support.fine_tunes import COMMAND, DONE, scripted_fine_tune

from worker import local
from worker.errors import EngineDead, InvalidInput

JOB = {"id": "mine", "input": {"prompt": "Hi é😀"}}
ODD = "a\u2028b\u2029c\x85d"  # characters that Python treats as line ends


@pytest.fixture(autouse=True)
def job_file(tmp_path: Path) -> Iterator[Path]:
    """The path of a job file in the working directory; the file doesn't exist yet."""
    with contextlib.chdir(tmp_path):
        yield tmp_path / "test_input.json"


def refusal_message(text: str | None) -> str:
    with pytest.raises(InvalidInput) as caught:
        local.read_test_job(text)
    return caught.value.message


def test_a_job_is_read_from_the_command_line_the_working_directory_or_the_repository(
    job_file: Path,
) -> None:
    assert local.read_test_job('{"input": {"prompt": "Hi"}}')["id"] == "local"
    default = json.loads((ROOT / "test_input.json").read_text())
    assert local.read_test_job(None)["input"] == default["input"]
    job_file.write_text(json.dumps(JOB, ensure_ascii=False), "utf-8")
    assert local.read_test_job(None) == JOB
    job_file.write_text("broken")
    assert local.read_test_job(json.dumps(JOB)) == JOB


def test_without_a_file_the_message_suggests_how_to_pass_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ROOT", tmp_path)
    expected = "There is no test_input.json here; write one or pass --test_input JSON."
    assert refusal_message(None) == expected


@pytest.mark.parametrize("text", ["", '{"input": {}', "\x00"])
def test_a_refusal_of_broken_json_names_the_position(text: str, job_file: Path) -> None:
    for source in (text, None):
        job_file.write_text(text)
        message = refusal_message(source)
        name = "--test_input" if source is not None else "test_input.json"
        assert message.startswith(f"{name} contains broken JSON: ")
        assert "line 1 column" in message


@pytest.mark.parametrize("text", ["[]", '"input"', '{"prompt": "Hi"}'])
def test_json_that_is_not_a_job_is_refused_with_an_example(text: str) -> None:
    assert (
        refusal_message(text)
        == '--test_input contains no job: it looks like {"input": {"prompt": "Hi"}}.'
    )


def test_a_wrong_input_is_refused_before_an_engine_starts() -> None:
    assert "did you mean 'stream'" in refusal_message('{"input": {"prompt": "Hi", "strem": true}}')


# Text of chunks:


def choices(*items: dict[str, Any]) -> dict[str, Any]:
    return {"choices": list(items)}


DELTA = choices({"delta": {"content": ODD}})


def extract_text(chunk: Any) -> str:
    return "".join(local.event_text(event) for event in local.decode_events(chunk))


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (choices({"tokens": ["a", "b"]}), "ab"),
        (choices({"tokens": ["a"]}, {"tokens": ["x"]}), "a"),
        (choices({"index": 0, "text": "completed"}), "completed"),
        (choices({"message": {"role": "assistant", "content": "said"}}), "said"),
        (choices({"message": {"content": None, "tool_calls": [{}]}}), ""),
        (choices({"delta": {"role": "assistant"}}), ""),
        (choices(), ""),
        ({"object": "list", "data": []}, ""),
        (event(DELTA) + event(DELTA) + "data: [DONE]\n\n", ODD + ODD),
        (": a comment\n\n", ""),
        ("metric 1\n", ""),
        ([DELTA, choices(), DELTA], ODD + ODD),
        ([], ""),
        ({"outputs": [choices({"tokens": ["a", "b"]}), {"error": {}}, {"text": "c"}]}, "ab\n\nc\n"),
        ({"index": 1, "result": choices({"tokens": ["a"]})}, "a\n"),
        ({"request_id": "x", "output": {"text": "a", "finished": False}}, "a"),
        ({"output": [{"type": "message"}], "text": {"format": {}}}, ""),
    ],
)
def test_the_text_of_a_chunk_is_found_in_every_format(chunk: Any, text: str) -> None:
    assert extract_text(chunk) == text


@pytest.mark.parametrize("job", [raw_job(stream=False), chat_job(stream=True)])
@pytest.mark.parametrize("raw_output", ["1", "0"])
async def test_the_text_is_found_in_all_chunks_of_the_worker(
    job: dict[str, Any], raw_output: str
) -> None:
    with ScriptedEngine(*tokens("one", " two", " three", "\n")) as engine:
        yields = await yields_of(engine, job, RAW_OPENAI_OUTPUT=raw_output)
    assert "".join(map(extract_text, yields)) == "one two three\n"


# Whole runs:


async def test_a_run_prints_every_chunk_and_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    payload = raw_job(stream=True, max_batch_delay_ms=0)
    with ScriptedEngine(*tokens("one", " zwölf", " 😀")) as engine:
        yields = await yields_of(engine, payload)
        status = await local.run_and_print(worker(engine), {"id": "job-1", "input": payload})
    printed = capsys.readouterr()
    *lines, blank, text = printed.out.splitlines()
    assert [json.loads(line) for line in lines] == yields
    assert (blank, text, printed.err, status) == ("", "one zwölf 😀", "", 0)
    assert "zwölf" in lines[1]


@pytest.mark.parametrize("payload", [raw_job(stream=False), chat_job(stream=True)])
async def test_a_run_that_fails_prints_the_reason_and_exits_with_1(
    payload: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), EngineDead()) as engine:
        assert await local.run_and_print(worker(engine), {"id": "local", "input": payload}) == 1
    assert capsys.readouterr().err == f"The job failed: {EngineDead().message}\n"


async def test_unfinished_work_on_the_volume_is_run_sequentially(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("worker.fine_tunes.step.COMMAND", COMMAND)
    with ScriptedEngine() as engine:
        engine.model = replace(engine.model, directory=tmp_path)
        running = worker(engine, BASE_PATH=str(tmp_path))
        assert await local.run_unfinished_work(running) == 0
        fine_tunes = [
            scripted_fine_tune(tmp_path, DONE, id=f"ftjob-{letter * 24}", base="demo")
            for letter in "ab"
        ]
        assert await local.run_unfinished_work(running) == 0
        assert [fine_tune.has_ended() for fine_tune in fine_tunes] == [True, True]
        scripted_fine_tune(tmp_path, DONE, id=f"ftjob-{'c' * 24}", base="another")
        assert await local.run_unfinished_work(running) == 1
    assert "another" in capsys.readouterr().err
