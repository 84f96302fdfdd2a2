"""Prepares the conversations in requests' bodies: checks them and adds SYSTEM_PROMPT.

Each public function changes a body for the routes that name it in ``worker.routes.vllm.ROUTES``.
"""

import json
from collections.abc import Iterator
from typing import Any

from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.base import add_system_prompt
from worker.messages import convert_messages, require
from worker.routes.content_blocks import convert_blocks

# Parameters of /v1/responses that need objects on OpenAI's servers, and the ends of their refusals.
STORED_OBJECTS = {
    "background": "responses that could be fetched later: leave it out",
    "conversation": "conversations: send the earlier items in input",
    "prompt": "prompts: send the text in instructions or input",
}


def prepare_chat_messages(body: dict[str, Any], job: OpenAIJob, system_prompt: str | None) -> None:
    """Convert ``messages`` for vLLM, and add the system prompt unless they have a system message.

    A string becomes a message of the user. Messages without a role become the user's, too, if the
    caller wrote the route without /v1. A message that is continued starts no new turn.

    Raises:
        InvalidInput: The messages are no list, or one of them has no form that is known.
    """
    if "messages" not in body:
        return
    messages = body["messages"]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    role = {} if job.has_version_prefix else {"role": "user"}
    conversation = [{**role, **message} for message in convert_messages(messages)]
    body["messages"] = add_system_prompt(conversation, system_prompt)
    if body.get("continue_final_message") is True:
        body.setdefault("add_generation_prompt", False)


def prepare_pooling_messages(body: dict[str, Any], _: OpenAIJob, system_prompt: str | None) -> None:
    """Convert conversations, in ``messages`` or in ``input``, for vLLM. SYSTEM_PROMPT is not added.

    Raises:
        InvalidInput: One of the messages has no form that is known.
    """
    for key in body.keys() & {"messages", "input"}:
        match body[key]:
            case [dict(), *_] as messages:
                body[key] = convert_messages(messages, key)
            case [[dict(), *_], *_] as conversations:
                body[key] = [convert_messages(m, f"{key}.{i}") for i, m in enumerate(conversations)]


def prepare_anthropic_messages(
    body: dict[str, Any], _: OpenAIJob, system_prompt: str | None
) -> None:
    """Convert the content blocks for vLLM, and set ``system`` unless the request has it.

    Raises:
        InvalidInput: A block has a type that vLLM does not read, or lacks its text.
    """
    convert_blocks(body)
    if system_prompt is not None:
        body.setdefault("system", system_prompt)


def prepare_responses_input(body: dict[str, Any], _: OpenAIJob, system_prompt: str | None) -> None:
    """Set ``instructions`` to the system prompt, and convert ``input`` for vLLM.

    The instructions are not set if the request has them or its input has a system message.

    Raises:
        InvalidInput: The input is neither a string nor a list, or contains a file; the tools are
            not a list; or the request needs an object that OpenAI's servers store.
    """
    for name, message in STORED_OBJECTS.items():
        if body.get(name):
            raise InvalidInput(f"{name}: this worker stores no {message}", param=name)
    require(list, "tools", body.get("tools", []))
    items = body.get("input", "")
    if not isinstance(items, str | list):
        raise InvalidInput("input: Input should be a valid string or list", param="input")
    if isinstance(items, list):
        body["input"] = [_simplify_item(item) for item in items]
    if system_prompt is not None and not _has_system_message(items):
        body.setdefault("instructions", system_prompt)


def _simplify_item(item: Any) -> Any:
    """Join text parts of earlier answers and tool output (vLLM reads only one); refuse files.

    The arguments of a call may be an object.
    """
    if not isinstance(item, dict):
        return item
    if item.get("type") == "function_call" and isinstance(item.get("arguments"), dict):
        return {**item, "arguments": json.dumps(item["arguments"], ensure_ascii=False)}
    if item.get("type") == "reasoning":
        return {**item, **dict(_joined_parts_of_reasoning(item))}
    for parts in (item.get("content"), item.get("output")):
        if isinstance(parts, list) and any(_has_type(part, "input_file") for part in parts):
            raise InvalidInput(
                "input: this worker accepts no files: send their text", param="input"
            )
    if item.get("type") == "function_call_output" and _has_only_text(item.get("output")):
        return {**item, "output": _join_text(item["output"])}
    if item.get("role") == "assistant" and _has_only_text(item.get("content")):
        part = {"type": "output_text", "text": _join_text(item["content"]), "annotations": []}
        return {**item, "content": [part]}
    return item


def _joined_parts_of_reasoning(item: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for key, type_ in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(key)
        if isinstance(parts, list) and len(parts) > 1 and all(_has_type(p, type_) for p in parts):
            yield key, [{"type": type_, "text": "\n".join(str(part.get("text")) for part in parts)}]


def _has_system_message(items: Any) -> bool:
    """Return whether an input contains a system or developer message."""
    messages = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return any(message.get("role") in ("system", "developer") for message in messages)


def _has_only_text(parts: Any) -> bool:
    types = ("input_text", "output_text", "refusal")
    return isinstance(parts, list) and all(_has_type(part, *types) for part in parts)


def _has_type(part: Any, *types: str) -> bool:
    return isinstance(part, dict) and part.get("type") in types


def _join_text(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
