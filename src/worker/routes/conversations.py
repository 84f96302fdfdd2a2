"""Conversations in the bodies of requests: checked, and opened with SYSTEM_PROMPT.

Each function changes a body for vLLM's server. A route names its function in ``ROUTES``.
"""

from typing import Any

from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.base import with_system_prompt


def chat(body: dict[str, Any], job: OpenAIJob, system: str | None) -> None:
    """Complete ``messages``: a text is the user's, as is, without /v1, a message without a role.

    Raises:
        InvalidInput: they are no list of objects.
    """
    if "messages" not in body:
        return
    messages = body["messages"]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    _check_messages(messages)
    role = {} if job.versioned else {"role": "user"}
    body["messages"] = with_system_prompt([{**role, **message} for message in messages], system)


def anthropic(body: dict[str, Any], _: OpenAIJob, system: str | None) -> None:
    """Complete ``system``."""
    if system is not None:
        body.setdefault("system", system)


def response(body: dict[str, Any], _: OpenAIJob, system: str | None) -> None:
    """Complete ``instructions``, and make ``input`` readable to vLLM.

    Raises:
        InvalidInput: the input is neither a text nor a list, or has a file; tools are no list; or
            the answer is to be fetched later.
    """
    if body.get("background"):
        message = "this worker stores no responses that could be fetched later: leave it out"
        raise InvalidInput(f"background: {message}", param="background")
    _check_list("tools", body.get("tools", []))
    items = body.get("input", "")
    if not isinstance(items, str | list):
        raise InvalidInput("input: Input should be a valid string or list", param="input")
    if isinstance(items, list):
        body["input"] = [_readable(item) for item in items]
    if system is not None and not _has_system(items):
        body.setdefault("instructions", system)


def _check_messages(messages: Any) -> None:
    _check_list("messages", messages)
    for index, message in enumerate(messages):
        place = f"messages.{index}"
        if not isinstance(message, dict):
            raise InvalidInput(f"{place}: Input should be a valid dictionary", param=place)
        if message.get("tool_calls") is not None:
            _check_list(f"{place}.tool_calls", message["tool_calls"])


def _check_list(place: str, value: Any) -> None:
    """Check a list that vLLM iterates over before its own checks: their error would be Python's."""
    if not isinstance(value, list):
        raise InvalidInput(f"{place}: Input should be a valid list", param=place)


def _readable(item: Any) -> Any:
    """Join the parts of an earlier answer, or of a tool's output: vLLM reads only one text."""
    if not isinstance(item, dict):
        return item
    for parts in (item.get("content"), item.get("output")):
        if isinstance(parts, list) and any(_of_type(part, "input_file") for part in parts):
            raise InvalidInput("input: this worker takes no files: send their text", param="input")
    if item.get("type") == "function_call_output" and _is_text(item.get("output")):
        return {**item, "output": _joined(item["output"])}
    if item.get("role") == "assistant" and _is_text(item.get("content")):
        text = {"type": "output_text", "text": _joined(item["content"]), "annotations": []}
        return {**item, "content": [text]}
    return item


def _has_system(items: Any) -> bool:
    """Return whether an input has a system or developer message."""
    turns = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return any(turn.get("role") in ("system", "developer") for turn in turns)


def _is_text(parts: Any) -> bool:
    types = ("input_text", "output_text", "refusal")
    return isinstance(parts, list) and all(_of_type(part, *types) for part in parts)


def _of_type(part: Any, *types: str) -> bool:
    return isinstance(part, dict) and part.get("type") in types


def _joined(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
