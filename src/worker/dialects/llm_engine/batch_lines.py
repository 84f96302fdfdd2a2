"""Requests of LLM Engine's batches as the lines of an OpenAI batch's input file.

The ``custom_id`` of a line is its place in the request, from 0.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from worker.dialects.llm_engine.batch_requests import Content
from worker.dialects.llm_engine.completions import RENAMED
from worker.errors import InvalidInput
from worker.validation import without_nulls

COMPLETIONS = "/v1/completions"
# The key that only requests of a kind have -> their route.
ROUTES = {"messages": "/v1/chat/completions", "prompt": COMPLETIONS, "input": "/v1/responses"}
# What a caller's request does not decide: every line names the batch's model, none is streamed.
OVERWRITTEN = ("model", "stream", "stream_options")

_TOO_DEEP = "it is nested too deeply"
_KINDS = "messages (a chat), prompt (a completion) or input (a response)"


def of_prompts(
    prompts: Iterable[Any], content: Content, model: str, priority: int | None = None
) -> Iterator[bytes]:
    """Yield the lines of a v1 batch.

    Args:
        prompts: texts.
        content: what they share.
        model: the name of a model that is served.
        priority: for the scheduler; None: it answers requests in their order.

    Raises:
        InvalidInput: a prompt is no text; it tells which.
    """
    log_probs = 1 if content.return_token_log_probs else None
    sampled = {RENAMED.get(name, name): value for name, value in content}
    del sampled["return_token_log_probs"]
    shared = without_nulls({"model": model, **sampled, "logprobs": log_probs, "priority": priority})
    for index, prompt in enumerate(prompts):
        check_prompt(index, prompt)
        place = f"content.prompts.{index}"
        yield _line(index, place, COMPLETIONS, {**shared, "prompt": prompt})


def check_prompt(index: int, prompt: Any) -> None:
    """Check that the prompt of this index, from 0, is a text.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(prompt, str):
        raise _refusal(f"content.prompts.{index}", "a prompt is a text")


def of_bodies(
    items: Iterable[Any], url: str, model: str, priority: int | None = None
) -> Iterator[bytes]:
    """Yield the lines of a v2 batch.

    Args:
        items: bodies of requests.
        url: the route of the first.
        model: the name of a model that is served.
        priority: for bodies without one; None: the scheduler answers requests in their order.

    Raises:
        InvalidInput: one is no body, or for another route than the first; it tells which.
    """
    for index, item in enumerate(items):
        if (found := _route(index, item)) != url:
            message = f"it is for {found}, but the first is for {url}: a batch has one route"
            raise _refusal(f"content.{index}", message)
        body = _body(index, item)
        # LLM Engine's client writes 0 where nobody asked for one.
        if priority is not None and not body.get("priority"):
            body["priority"] = priority
        yield _line(index, f"content.{index}", url, {**body, "model": model})


def route_of(first: Any) -> str:
    """Return the route of a v2 batch, by its first body.

    Raises:
        InvalidInput: it is no body.
    """
    return _route(0, first)


def _body(index: int, item: dict[str, Any]) -> dict[str, Any]:
    try:
        return {key: value for key, value in plain(item).items() if key not in OVERWRITTEN}
    except RecursionError:
        raise _refusal(f"content.{index}", _TOO_DEEP) from None


def _route(index: int, item: Any) -> str:
    keys = without_nulls(item) if isinstance(item, dict) else {}
    found = [route for key, route in ROUTES.items() if key in keys]
    if len(found) != 1:
        raise _refusal(f"content.{index}", f"an object with one of {_KINDS}")
    return found[0]


def _line(index: int, place: str, url: str, body: dict[str, Any]) -> bytes:
    line = {"custom_id": str(index), "method": "POST", "url": url, "body": body}
    try:
        return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except RecursionError:
        raise _refusal(place, _TOO_DEEP) from None
    except UnicodeEncodeError:
        raise _refusal(place, "a text in it has half of a surrogate pair") from None
    except ValueError:
        raise _refusal(place, "a number in it is none that JSON has") from None


def _refusal(place: str, message: str) -> InvalidInput:
    return InvalidInput(f"{place}: {message}", param=place)


# The client writes null wherever a model has an optional key. vLLM's server takes null for most
# keys of a body, but not for those of messages and tools.

# Parts of a body whose keys are OpenAI's, however deep.
PARTS = ("messages", "input", "tools", "tool_choice", "response_format")
# Keys in them under which a caller's own objects stand: null may be a value there.
OWN = ("parameters", "schema", "arguments")
# What the client calls a key, since its models can't have one of that name.
_RENAMED = {"schema_": "schema"}


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without nulls where they mean that nothing was given."""
    return {
        key: _plain(value) if key in PARTS else value
        for key, value in body.items()
        if value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_RENAMED.get(key, key): item for key, item in value.items() if item is not None}
    return {key: item if key in OWN else _plain(item) for key, item in named.items()}
