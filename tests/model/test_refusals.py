"""Tests that refused requests report the reason and that their content is not logged."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from model.conftest import Ask
from support.engine.scripted import failure

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

PROMPT, SECRET = "prompt7421", "secret7421"
MESSAGES = [{"role": "user", "content": PROMPT}]
# Valid keys that are sent together with the wrong keys, for each route or form of a raw job.
VALID_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/responses": {"input": PROMPT},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "raw": {"prompt": PROMPT},
    "list": {"prompts": [PROMPT, "Hi"]},
}


class Row(NamedTuple):
    """A refused request; ``words`` is a part of the error message."""

    kind: str
    wrong: dict[str, Any]
    status: int
    param: str | None
    words: str

    def job(self, *, stream: bool) -> dict[str, Any]:
        body = {"stream": stream, **VALID_BODIES.get(self.kind, {}), **self.wrong}
        if "messages" in self.wrong:
            body.pop("prompt", None)
        body = {key: value for key, value in body.items() if value is not None}
        if not self.kind.startswith("/"):
            return body
        return {"openai_route": self.kind, "openai_input": body}


def _read_rows() -> Iterator[Row]:
    text = Path(__file__).with_name("refusals.json").read_text()
    text = text.replace("<secret>", SECRET).replace("<prompt>", PROMPT)
    text = text.replace("<longer>", PROMPT * 14_000).replace("<long>", f"{PROMPT} " * 2_000)
    for kind, rows in json.loads(text).items():
        yield from (Row(kind, *row) for row in rows)


ROWS = [*_read_rows()]
# One row of each kind, for streams that are refused before they start.
STREAMS = {row.kind: row for row in ROWS}.values()


@pytest.fixture
def log_output(demo_engine: "InProcessEngine") -> Iterator[io.StringIO]:
    """Capture the log of vLLM and of all other loggers at INFO; at DEBUG vLLM logs each request."""
    assert demo_engine  # the engine has added its log filters
    stream, own = io.StringIO(), logging.getLogger("vllm")
    handlers = [handler for handler in own.handlers if isinstance(handler, logging.StreamHandler)]
    others = logging.StreamHandler(stream)
    before = [(handler.setStream(stream), handler.level) for handler in handlers]
    level, root = own.level, logging.getLogger()
    own.setLevel(logging.INFO)
    for handler in handlers:
        handler.setLevel(logging.INFO)
    root.addHandler(others)
    yield stream
    root.removeHandler(others)
    own.setLevel(level)
    for handler, (out, its_level) in zip(handlers, before, strict=True):
        handler.setStream(out)
        handler.setLevel(its_level)


@pytest.mark.parametrize(
    ("row", "stream"),
    [*((row, False) for row in ROWS), *((row, True) for row in STREAMS)],
    ids=lambda value: f"{value.kind} {value.wrong}"[:90] if isinstance(value, Row) else str(value),
)
async def test_a_refused_request_fails_with_the_reason_and_its_content_is_not_logged(
    row: Row, stream: bool, ask: Ask, log_output: io.StringIO
) -> None:
    (chunk,) = await ask(**row.job(stream=stream))
    error = failure([chunk])
    assert (error["code"], error["param"]) == (row.status, row.param)
    assert row.words in error["message"]
    assert PROMPT not in error["message"]
    # The message also omits xgrammar's position in its own source code.
    assert not re.search(r"\.cc|\d:\d\d:\d\d", error["message"])
    assert (error["retryable"], error["request_id"]) == (False, "job-1")
    logging.getLogger("vllm.a").info("the last line")
    assert "the last line" in log_output.getvalue()
    assert "Traceback" not in log_output.getvalue()
    assert SECRET not in log_output.getvalue()
    assert PROMPT not in log_output.getvalue()


async def test_the_content_of_a_refused_list_item_is_not_logged(
    ask: Ask, log_output: io.StringIO
) -> None:
    (whole,) = await ask(prompts=[f"{PROMPT} " * 2_000, PROMPT], sampling_params={"logprobs": 50})
    assert [output["error"]["code"] for output in whole["outputs"]] == [400, 400]
    assert PROMPT not in log_output.getvalue()


async def test_a_wrong_http_method_is_refused(ask: Ask) -> None:
    error = failure(await ask(route="/v1/chat/completions", method="GET"))
    assert (error["code"], error["type"]) == (405, "MethodNotAllowedError")


CONTINUED: list[dict[str, Any]] = [*MESSAGES, {"role": "assistant", "content": SECRET}]
# Requests with a conversation, and whether they continue its last message.
CONVERSATIONS: list[tuple[dict[str, Any], bool]] = [
    ({"messages": MESSAGES}, False),
    ({"messages": CONTINUED, "continue_final_message": True}, True),
    *(
        ({"openai_route": route, "openai_input": body}, continues)
        for route, body, continues in (
            ("/v1/chat/completions", {"messages": MESSAGES}, False),
            ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, False),
            (
                "/v1/chat/completions",
                {"messages": CONTINUED, "continue_final_message": True},
                True,
            ),
            ("/v1/responses", {"input": PROMPT}, False),
            ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}, False),
            ("/v1/messages/count_tokens", {"messages": MESSAGES}, False),
        )
    ),
]


@pytest.mark.parametrize(("job", "continues"), CONVERSATIONS, ids=str)
async def test_a_template_that_refuses_a_conversation_is_named(
    job: dict[str, Any],
    continues: bool,
    ask: Ask,
    demo_engine: "InProcessEngine",
    log_output: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = "{{ messages[0].content + raise_exception('Roles must alternate') }}"
    if continues:
        template = "{{ messages[0].content }}"  # the content of the last message is missing
    monkeypatch.setattr(demo_engine.generation.chat_renderer, "chat_template", template)
    error = failure(await ask(**job))
    assert error["code"] == 400
    if continues:
        assert "template changes the last message or leaves it out" in error["message"]
    else:
        expected = "The model's chat template refuses this conversation: Roles must alternate ("
        assert error["message"].startswith(f"{expected}CUSTOM_CHAT_TEMPLATE on the endpoint")
    assert not {PROMPT, SECRET} & {*re.findall(r"\w+", error["message"] + log_output.getvalue())}
