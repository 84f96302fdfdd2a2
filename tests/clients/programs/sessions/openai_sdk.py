"""Sessions of OpenAI's client: `python openai_sdk.py BASE_URL`."""

import sys
from typing import Any

import openai
from pydantic import BaseModel

PARAMETERS = {"type": "object", "properties": {"job_id": {"type": "string"}}}
FUNCTION = {"name": "job_status", "description": "The status of a job.", "parameters": PARAMETERS}
QUESTION = "Is job 42 done?"
# The script's last answer; the script has fewer turns than this.
LAST, MAX_TURNS = "All is done.", 40


class Description(BaseModel):
    """A description of a worker."""

    name: str
    streams: bool
    chunks: list[int]


def chat_session(client: Any, *, stream: bool) -> None:
    params = {"model": "demo", "tools": [{"type": "function", "function": FUNCTION}]}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    for _ in range(MAX_TURNS):
        if stream:
            options = {"include_usage": True}
            with client.chat.completions.stream(
                messages=messages, stream_options=options, **params
            ) as events:
                list(events)
                message = events.get_final_completion().choices[0].message
            messages.append(message.model_dump())
        else:
            message = client.chat.completions.create(messages=messages, **params).choices[0].message
            messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "COMPLETED"}
            for call in message.tool_calls or ()
        ]
        if not message.tool_calls:
            messages.append({"role": "user", "content": [{"type": "text", "text": "Go on."}]})
        if message.content == LAST:
            return
    sys.exit("the script has no end")


def responses_session(client: Any, *, stream: bool) -> None:
    params = {"model": "demo", "tools": [{"type": "function", **FUNCTION, "strict": None}]}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(MAX_TURNS):
        if stream:
            # A broken stream has no final response.
            events = client.responses.create(input=items, store=False, stream=True, **params)
            output = [event.item for event in events if event.type == "response.output_item.done"]
            items += [item.model_dump() for item in output]
        else:
            output = client.responses.create(input=items, instructions="Be brief.", **params).output
            items += output
        calls = [item for item in output if item.type == "function_call"]
        for call in calls:
            result = {"type": "function_call_output", "call_id": call.call_id}
            items.append({**result, "output": "COMPLETED"})
        if not calls:
            items.append({"role": "user", "content": "Go on."})
        if any(item.type == "message" and item.content[0].text == LAST for item in output):
            return
    sys.exit("the script has no end")


def main(base_url: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0)
    for stream in (False, True):
        chat_session(client, stream=stream)
        responses_session(client, stream=stream)
    messages = [{"role": "user", "content": "Describe the worker as JSON."}]
    parse = client.chat.completions.parse
    parse(model="demo", messages=messages, response_format=Description, max_completion_tokens=80)
    client.responses.parse(model="demo", input=messages, text_format=Description)
    client.completions.create(model="demo", prompt=["Hi", "Hello"], max_tokens=4, logprobs=1)
    client.embeddings.create(model="minilm", input=["Hi", "Hello"])


if __name__ == "__main__":
    main(*sys.argv[1:])
