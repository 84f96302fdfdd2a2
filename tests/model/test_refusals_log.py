"""What the log says of refused requests: no traceback, and nothing of what callers wrote."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from worker.app import Worker

CANARY = "canary7421"
HI = [{"role": "user", "content": CANARY}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": CANARY}}]}]
TOOL = {"type": "function", "function": {"name": CANARY, "parameters": {"type": "object"}}}

CHAT = "/v1/chat/completions"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 50}),
    (CHAT, {"messages": HI, "temperature": CANARY}),
    (CHAT, {"messages": HI, "temperature": -1}),
    (CHAT, {"messages": HI, "model": CANARY}),
    (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": TOOL}),
    (CHAT, {"messages": HI, "tools": [{"type": CANARY}]}),
    (CHAT, {"messages": HI, "max_tokens": 10**6}),
    (CHAT, {"messages": HI, "chat_template_kwargs": {"tokenizer": CANARY}}),
    (CHAT, {"messages": HI, "structured_outputs": {"regex": f"((({CANARY}"}}),
    (CHAT, {"messages": HI, "structured_outputs": {"grammar": CANARY}}),
    (CHAT, {"messages": HI, "response_format": {"type": "json_schema", "json_schema": CANARY}}),
    (CHAT, {"messages": HI, "bad_words": [""]}),
    (CHAT, {"messages": HI, "stop": [CANARY] * 200}),
    (CHAT, {"messages": HI, "continue_final_message": True, "add_generation_prompt": True}),
    (CHAT, {"messages": IMAGE}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": CANARY, "text": CANARY}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": f"{CANARY} " * 2_000}]}),
    (CHAT, {"messages": [{"content": CANARY}]}),
    (CHAT, {"messages": f"{CANARY}"}),
    ("/v1/completions", {"prompt": CANARY, "logprobs": 50}),
    ("/v1/completions", {"prompt": CANARY, "suffix": CANARY}),
    ("/v1/completions", {"prompt": f"{CANARY} " * 2_000}),
    ("/v1/completions", {"prompt": [10**6], "user": CANARY}),
    ("/v1/completions", {"prompt": {CANARY: 1}}),
    ("/v1/responses", {"input": CANARY, "top_logprobs": 50}),
    ("/v1/responses", {"input": CANARY, "previous_response_id": CANARY}),
    ("/v1/responses", {"input": CANARY, "max_output_tokens": 10**6}),
    ("/v1/responses", {"input": [{"type": CANARY, "content": CANARY}]}),
    ("/v1/responses", {"input": f"{CANARY} " * 2_000}),
    ("/v1/messages", {"messages": HI, "max_tokens": 10**6}),
    ("/v1/messages", {"messages": HI, "max_tokens": CANARY}),
    ("/v1/messages", {"messages": [{"role": CANARY, "content": CANARY}], "max_tokens": 1}),
    ("/v1/messages", {"messages": HI, "max_tokens": 1, "temperature": -1}),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": f"{CANARY} " * 2_000}], "max_tokens": 1},
    ),
    ("/v1/messages/count_tokens", {"messages": [{"role": CANARY, "content": CANARY}]}),
    ("/tokenize", {"prompt": {"a": CANARY}}),
    ("/tokenize", {"messages": IMAGE}),
    ("/detokenize", {"tokens": [CANARY]}),
    ("/v1/embeddings", {"input": CANARY}),
]
RAW: list[dict[str, Any]] = [
    {"prompt": f"{CANARY} " * 2_000},
    {"prompt": f"{CANARY}" * 20_000},
    {"messages": IMAGE},
    {"prompt": CANARY, "sampling_params": {"logprobs": 50}},
    {"prompt": CANARY, "sampling_params": {"guided_regex": f"((({CANARY}"}},
    {"prompt": CANARY, "sampling_params": {"guided_grammar": CANARY}},
    {"prompt": CANARY, "sampling_params": {"guided_json": {"type": CANARY}}},
    {"prompt": CANARY, "sampling_params": {"temperature": CANARY}},
    {"prompt": CANARY, "model": CANARY},
    {"messages": HI, "chat_template_kwargs": {"tokenizer": CANARY}},
    {"prompts": [f"{CANARY} " * 2_000, CANARY], "sampling_params": {"logprobs": 50}},
]
JOBS = [
    *({"route": path, "body": body} for path, body in BODIES),
    *({"route": path, "body": {**body, "stream": True}} for path, body in BODIES),
    *RAW,
    *({**job, "stream": True} for job in RAW),
]


@pytest.fixture
def printed(worker: Worker) -> Iterator[io.StringIO]:
    """What vLLM's log prints, and all others; at DEBUG vLLM shows every request."""
    assert worker  # the engine has added its filters
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


@pytest.mark.parametrize("job", JOBS, ids=lambda job: json.dumps(job)[:120])
async def test_the_log_holds_no_traceback_and_no_words_of_a_refused_request(
    job: dict[str, Any], worker: Worker, printed: io.StringIO
) -> None:
    _ = [chunk async for chunk in worker.handle({"id": "job-1", "input": job})]
    logging.getLogger("vllm.a").info("the last line")
    assert "the last line" in printed.getvalue()
    assert "Traceback" not in printed.getvalue()
    assert CANARY not in printed.getvalue()
