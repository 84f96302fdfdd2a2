"""Local runs, without a platform."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.engine.scripted import ScriptedEngine, chat, event, raw, tokens, worker, yields_of
from support.fine_tunes import COMMAND, DONE, fine_tune_at

from worker import local
from worker.errors import EngineDead, InvalidInput

JOB = {"id": "mine", "input": {"prompt": "Hi é😀"}}
ODD = "a\u2028b\u2029c\x85d"  # what Python takes for the end of a line


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    """The file of the working directory, which is not there yet."""
    with contextlib.chdir(tmp_path):
        yield tmp_path / "test_input.json"


def refusal(text: str | None) -> str:
    with pytest.raises(InvalidInput) as caught:
        local.read_job(text)
    return caught.value.message


def test_a_job_is_read_from_the_command_line_then_from_a_file_here_or_of_the_repository(
    here: Path,
) -> None:
    assert local.read_job('{"input": {"prompt": "Hi"}}')["id"] == "local"
    repositorys = json.loads((ROOT / "test_input.json").read_text())
    assert local.read_job(None)["input"] == repositorys["input"]
    here.write_text(json.dumps(JOB, ensure_ascii=False), "utf-8")
    assert local.read_job(None) == JOB
    here.write_text("broken")
    assert local.read_job(json.dumps(JOB)) == JOB


def test_without_a_file_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ROOT", tmp_path)
    expected = "There is no test_input.json here; write one or pass --test_input JSON."
    assert refusal(None) == expected


@pytest.mark.parametrize("text", ["", "{", "{'input': 1}", '{"input": {}', "\x00"])
def test_a_refusal_of_broken_json_names_its_place(text: str, here: Path) -> None:
    for source in (text, None):
        here.write_text(text)
        message = refusal(source)
        name = "--test_input" if source is not None else "test_input.json"
        assert message.startswith(f"{name} holds broken JSON: ")
        assert "line 1 column" in message


@pytest.mark.parametrize("text", ["[]", "7", "null", '"input"', "{}", '{"prompt": "Hi"}'])
def test_json_that_is_not_a_job_is_refused_with_an_example(text: str) -> None:
    assert refusal(text) == '--test_input holds no job: it looks like {"input": {"prompt": "Hi"}}.'


def test_a_wrong_input_is_refused_before_an_engine_starts() -> None:
    assert "did you mean 'stream'" in refusal('{"input": {"prompt": "Hi", "strem": true}}')


# Texts of yields:


def choices(*items: dict[str, Any]) -> dict[str, Any]:
    return {"choices": list(items)}


SAID = choices({"delta": {"content": ODD}})


def text_in(chunk: Any) -> str:
    return "".join(local.text_of(event) for event in local.events_of(chunk))


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
        (event(SAID) + event(SAID) + "data: [DONE]\n\n", ODD + ODD),
        (": a comment\n\n", ""),
        ("metric 1\n", ""),
        ([SAID, choices(), SAID], ODD + ODD),
        ([], ""),
        ({"outputs": [choices({"tokens": ["a", "b"]}), {"error": {}}, {"text": "c"}]}, "ab\n\nc\n"),
        ({"index": 1, "result": choices({"tokens": ["a"]})}, "a\n"),
        ({"request_id": "x", "output": {"text": "a", "finished": False}}, "a"),
        ({"output": [{"type": "message"}], "text": {"format": {}}}, ""),
    ],
)
def test_the_text_of_a_yield_is_found_in_every_form(chunk: Any, text: str) -> None:
    assert text_in(chunk) == text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", [raw, chat])
@pytest.mark.parametrize("raw_output", ["1", "0"])
async def test_the_text_is_found_in_what_the_worker_yields(
    form: Any, stream: bool, raw_output: str
) -> None:
    with ScriptedEngine(*tokens("one", " two", " three", "\n")) as engine:
        yields = await yields_of(engine, form(stream=stream), RAW_OPENAI_OUTPUT=raw_output)
    assert "".join(map(text_in, yields)) == "one two three\n"


# A whole run:


async def test_a_run_prints_every_yield_and_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    payload = raw(stream=True, max_batch_delay_ms=0)
    with ScriptedEngine(*tokens("one", " zwölf", " 😀")) as engine:
        yields = await yields_of(engine, payload)
        status = await local.answer(worker(engine), {"id": "job-1", "input": payload})
    printed = capsys.readouterr()
    *lines, blank, text = printed.out.splitlines()
    assert [json.loads(line) for line in lines] == yields
    assert (blank, text, printed.err, status) == ("", "one zwölf 😀", "", 0)
    assert "zwölf" in lines[1]


@pytest.mark.parametrize("payload", [raw(stream=False), chat(stream=True)])
async def test_a_run_whose_job_or_stream_fails_says_why_and_exits_1(
    payload: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), EngineDead()) as engine:
        assert await local.answer(worker(engine), {"id": "local", "input": payload}) == 1
    assert capsys.readouterr().err == f"The job failed: {EngineDead().message}\n"


async def test_what_is_left_on_the_volume_is_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("worker.fine_tunes.workshop.COMMAND", COMMAND)
    with ScriptedEngine() as engine:
        engine.model = replace(engine.model, place=tmp_path)
        running = worker(engine, BASE_PATH=str(tmp_path))
        assert await local.go_on(running) == 0
        left = [fine_tune_at(tmp_path, DONE, id=f"ftjob-{one * 24}", base="demo") for one in "ab"]
        assert await local.go_on(running) == 0
        assert [one.ended() for one in left] == [True, True]
        fine_tune_at(tmp_path, DONE, id=f"ftjob-{'c' * 24}", base="another")
        assert await local.go_on(running) == 1
    assert "another" in capsys.readouterr().err
