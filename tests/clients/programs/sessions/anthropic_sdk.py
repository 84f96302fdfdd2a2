"""Sessions of Anthropic's client: `python anthropic_sdk.py BASE_URL`."""

import sys
from typing import Any

import anthropic

SCHEMA = {"type": "object", "properties": {"job_id": {"type": "string"}}}
TOOL = {"name": "job_status", "description": "The status of a job.", "input_schema": SCHEMA}
LAST, MAX_TURNS = "All is done.", 40


def session(client: Any, *, stream: bool) -> None:
    cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    params: dict[str, Any] = {"model": "demo", "max_tokens": 4_096, "tools": [TOOL]}
    if stream:
        params |= {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
        params |= {"system": [{"type": "text", "text": "Be brief.", **cached}]}
    else:
        params |= {"system": "Be brief.", "metadata": {"user_id": "user-1"}}
    messages: list[Any] = [{"role": "user", "content": "Is job 42 done?"}]
    for _ in range(MAX_TURNS):
        if stream:
            with client.messages.stream(messages=messages, **params) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **params)
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        results: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "COMPLETED"}
            for call in calls
        ]
        if stream and results:
            results[-1] |= {"content": [{"type": "text", "text": "COMPLETED"}], "is_error": False}
            results[-1] |= cached
        messages.append({"role": "user", "content": results or "Go on."})
        if any(block.type == "text" and block.text == LAST for block in message.content):
            client.messages.count_tokens(
                model="demo", messages=messages[:-1], tools=[TOOL], system="Be brief."
            )
            return
    sys.exit("the script has no end")


def main(base_url: str) -> None:
    client = anthropic.Anthropic(base_url=base_url, api_key="any", max_retries=0)
    for stream in (False, True):
        session(client, stream=stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
