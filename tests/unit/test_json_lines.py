"""Lines of JSON and events have one line for every reader, whatever their strings contain."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.batches import line, run_batch, worker_with_volume
from support.engine.scripted import (
    CHAT,
    ScriptedEngine,
    chat_job,
    raw_job,
    static_app,
    tokens,
    worker,
    yields_of,
)

from llm_worker_client.mapping import responses
from trainer.output import EventLog
from worker import local
from worker.batches.lines import BatchLimits
from worker.batches.parts import encode_result_line
from worker.dialects.llm_engine import batch_inputs, batch_output
from worker.dialects.llm_engine.batch_inputs import BatchCompletionsRequest
from worker.json_lines import encode_unchecked_line
from worker.routes import events

BREAKS = "\x85\u2028\u2029"
# Characters at which ``str.splitlines`` ends a line, their neighbours in UTF-8, and others.
texts = st.text(
    st.sampled_from(f'{BREAKS}\n\r\v\f\x1c\x1d\x1e\x84\x86\u2027\u202a\xc2"\\e\xe9\u4e94\U0001f600')
    | st.characters(codec="utf-8")
)


def raw_event(text: str) -> bytes:
    """Return an event as vLLM's app sends it."""
    return f"data: {json.dumps({'text': text}, ensure_ascii=False)}\n\n".encode()


def completed_event(text: str) -> str:
    response = {"status": "incomplete", "text": text}
    return events.format_event({"response": response}, "event: response.completed\n")


def completion_line(text: str) -> bytes:
    body = {"choices": [{"text": text}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    response = {"status_code": 200, "body": body}
    return encode_result_line("batch", 1, text, response=response) + b"\n"


def read_v2_lines(text: str) -> bytes:
    request = BatchCompletionsRequest.from_body(
        {
            "model_config": {"model": "demo"},
            "output_data_path": "o",
            "content": [{"messages": [{"role": "user", "content": text}]}],
        }
    )
    limits = BatchLimits(max_lines=1, max_line_bytes=10**6)
    return b"".join(batch_inputs.convert_v2(request, None, limits)[1])


def make_error(shape: events.ErrorFormat, text: str) -> str:
    error = {"code": 500, "param": None, "request_id": "job-1", "message": text}
    return "".join(shape.make_last_events({"error": error}))


splitter = events.EventSplitter
# Everything that writes lines or events, as a function of a text in them.
WRITERS: dict[str, Callable[[str], str | bytes]] = {
    "an inner event": lambda text: splitter().decode_inner_event(raw_event(text)) or "",
    "the first events": lambda text: "".join(splitter().split_part(raw_event(text) * 2)),
    "the end of a response": lambda text: events.name_incomplete(completed_event(text)),
    "OpenAI's error": lambda text: make_error(events.OPENAI_ERRORS, text),
    "an error of a response": lambda text: make_error(events.RESPONSES_ERRORS, text),
    "Anthropic's error": lambda text: make_error(events.ANTHROPIC_ERRORS, text),
    "a receipt": lambda text: "".join(events.OPENAI_ERRORS.make_receipt_events({"user": text})),
    "an event": lambda text: events.format_event({"output": {"text": text}}),
    "an output line": completion_line,
    "an error line": lambda text: (
        encode_result_line("batch", 1, text, error={"message": text}) + b"\n"
    ),
    "LLM Engine's output": lambda text: batch_output.make_item_v1(completion_line(text)) + b"\n",
    "LLM Engine's body": lambda text: batch_output.make_item_v2(completion_line(text)) + b"\n",
    "LLM Engine's input": read_v2_lines,
    "rows": lambda text: encode_unchecked_line({"prompt": text}),
    "an event of the client": lambda text: responses.encode_event({"output": {"text": text}}),
}


def lines_of(content: str) -> list[str]:
    """Return the lines, which all readers have to agree on."""
    lines = content.split("\n")[:-1]
    assert content.endswith("\n")
    assert content.splitlines() == lines
    assert [*httpx2.Response(200, content=content.encode()).iter_lines()] == lines
    return lines


@pytest.mark.parametrize("writer", WRITERS)
@given(texts)
@example(BREAKS)
def test_a_text_breaks_no_line_and_is_unchanged(writer: str, text: str) -> None:
    content = WRITERS[writer](text)
    lines = lines_of(content if isinstance(content, str) else content.decode())
    data = [line.removeprefix("data: ") for line in lines if line.startswith(("data: {", "{"))]
    assert data
    assert all(json.dumps(text)[1:-1] in json.dumps(json.loads(one)) for one in data)


@given(texts | st.text(st.characters(categories=["Cs", "Lu"])))
def test_half_of_a_surrogate_pair_in_a_callers_line_is_found_by_its_reader(text: str) -> None:
    line = encode_unchecked_line({"prompt": text}).decode()
    # Both halves in succession are the character.
    joined = text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="surrogatepass")
    assert [json.loads(one) for one in lines_of(line)] == [{"prompt": joined}]


# The same in files and streams:


LLM_ENGINE = {"route": "/v1/llm/completions-stream", "method": "POST", "body": {"prompt": "Hi"}}


@pytest.mark.parametrize(
    "payload", [chat_job(stream=True), LLM_ENGINE], ids=["OpenAI", "LLM Engine"]
)
async def test_a_streams_events_have_no_other_lines(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", BREAKS, "b")) as engine:
        content = "".join(await yields_of(engine, payload))
    assert json.dumps(BREAKS)[1:-1] in content
    lines_of(content)


async def test_the_files_of_a_batch_have_a_line_for_each_request(tmp_path: Path) -> None:
    app = static_app(json.dumps({"choices": [{"message": {"content": BREAKS}}]}))
    requests = [line(f"a{BREAKS}"), line(f"b{BREAKS}", messages=5)]
    with ScriptedEngine(app=app) as engine:
        batch = await run_batch(
            worker_with_volume(tmp_path, engine), requests=requests, endpoint=CHAT
        )
    for name, count in (("input", 2), ("output", 1), ("error", 1)):
        path = tmp_path / "worker" / "files" / batch[f"{name}_file_id"] / "content"
        lines = lines_of(path.read_text())
        assert len(lines) == count
        assert all(BREAKS in json.loads(one)["custom_id"] for one in lines)


async def test_a_job_on_this_machine_prints_a_line_for_each_chunk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScriptedEngine(*tokens("a", BREAKS)) as engine:
        await local.run_and_print(worker(engine), {"id": "a", "input": raw_job(stream=False)})
    chunk, text = capsys.readouterr().out.split("\n", 1)
    assert json.loads(*lines_of(f"{chunk}\n"))["choices"][0]["tokens"] == [f"a{BREAKS}"]
    assert text == f"\na{BREAKS}\n"


def test_the_log_of_a_training_has_a_line_for_each_event(tmp_path: Path) -> None:
    with EventLog(tmp_path / "e", 0) as log:
        log.write(BREAKS)
    assert json.loads(lines_of((tmp_path / "e").read_text())[1])["message"] == BREAKS
