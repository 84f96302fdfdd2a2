"""Refused requests: what the caller learns, and that the log holds nothing of what was written."""

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
# What each route, or shape of a raw job, is sent beside what is wrong.
AROUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/responses": {"input": PROMPT},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "raw": {"prompt": PROMPT},
    "list": {"prompts": [PROMPT, "Hi"]},
}


class Row(NamedTuple):
    """A request; ``words`` are a part of the message that it is refused with."""

    kind: str
    wrong: dict[str, Any]
    status: int
    param: str | None
    words: str

    def job(self, *, stream: bool) -> dict[str, Any]:
        body = {"stream": stream, **AROUND.get(self.kind, {}), **self.wrong}
        if "messages" in self.wrong:
            body.pop("prompt", None)
        body = {key: value for key, value in body.items() if value is not None}
        if not self.kind.startswith("/"):
            return body
        return {"openai_route": self.kind, "openai_input": body}


def _rows() -> Iterator[Row]:
    text = Path(__file__).with_name("refusals.json").read_text()
    text = text.replace("<secret>", SECRET).replace("<prompt>", PROMPT)
    text = text.replace("<longer>", PROMPT * 14_000).replace("<long>", f"{PROMPT} " * 2_000)
    for kind, rows in json.loads(text).items():
        yield from (Row(kind, *row) for row in rows)


ROWS = [*_rows()]
# One of each kind, whose stream is refused before it begins.
STREAMS = {row.kind: row for row in ROWS}.values()


@pytest.fixture
def printed(demo_engine: "InProcessEngine") -> Iterator[io.StringIO]:
    """What vLLM's log prints, and all others; at DEBUG vLLM shows every request."""
    assert demo_engine  # it has added its filters
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
async def test_a_refused_request_fails_with_the_reason_and_leaves_nothing_in_the_log(
    row: Row, stream: bool, ask: Ask, printed: io.StringIO
) -> None:
    (chunk,) = await ask(**row.job(stream=stream))
    error = failure([chunk])
    assert (error["code"], error["param"]) == (row.status, row.param)
    assert row.words in error["message"]
    assert PROMPT not in error["message"]
    # Neither has it where in its sources xgrammar found a mistake.
    assert not re.search(r"\.cc|\d:\d\d:\d\d", error["message"])
    assert (error["retryable"], error["request_id"]) == (False, "job-1")
    logging.getLogger("vllm.a").info("the last line")
    assert "the last line" in printed.getvalue()
    assert "Traceback" not in printed.getvalue()
    assert SECRET not in printed.getvalue()
    assert PROMPT not in printed.getvalue()


async def test_a_refused_item_leaves_nothing_in_the_log(ask: Ask, printed: io.StringIO) -> None:
    (whole,) = await ask(prompts=[f"{PROMPT} " * 2_000, PROMPT], sampling_params={"logprobs": 50})
    assert [output["error"]["code"] for output in whole["outputs"]] == [400, 400]
    assert PROMPT not in printed.getvalue()


async def test_a_method_that_a_route_does_not_have_is_refused(ask: Ask) -> None:
    error = failure(await ask(route="/v1/chat/completions", method="GET"))
    assert (error["code"], error["type"]) == (405, "MethodNotAllowedError")
