"""Calls of OpenAI's client: `python -m clients.programs.openai_calls WAY ADDRESS KEY PART`.

The way is HTTP, with the address of a server and a caller's key, or the transport, with the address
of the platform and the account's key. Prints the results as JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Literal

import openai

from llm_worker_client import AsyncRunpodTransport, RunpodTransport

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
COUNT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Count to ten."}],
    "temperature": 0,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "job_status",
        "parameters": {"type": "object", "properties": {"job_id": {"type": "string"}}},
    },
}
FINAL_STATUSES = {"completed", "failed", "expired", "cancelled"}
PATIENCE_S = 300


def create_client(way: str, address: str, key: str, *, asynchronous: bool = False) -> Any:
    kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    if way != "transport":
        return kind(base_url=f"{address}/v1", api_key=key, max_retries=0)
    # The HTTP package that this version of the client uses.
    httpx = import_module("httpx" if openai.__version__ < "3" else "httpx2")
    carrier: Any = AsyncRunpodTransport if asynchronous else RunpodTransport
    http = (httpx.AsyncClient if asynchronous else httpx.Client)(
        transport=carrier("local", key, address), timeout=PATIENCE_S
    )
    return kind(api_key="unused", http_client=http, max_retries=0)


def lines(objects: Iterable[Any]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


def wait_until_ended(found: Any, retrieve: Callable[[str], Any]) -> Any:
    """Poll until the object has a final status."""
    deadline = time.monotonic() + PATIENCE_S
    while found.status not in FINAL_STATUSES:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
        found = retrieve(found.id)
    return found


def text(client: openai.OpenAI, **changes: Any) -> str:
    whole = client.chat.completions.create(**{**COUNT, **changes})
    return whole.choices[0].message.content or ""


async def chats_async() -> dict[str, Any]:
    async with create_client(*sys.argv[1:4], asynchronous=True) as client:
        whole = await client.chat.completions.create(**COUNT)
        events = await client.chat.completions.create(**COUNT, stream=True)
        pieces = [event.choices[0].delta.content or "" async for event in events]
        return {"whole": whole.choices[0].message.content, "pieces": pieces}


def tool_calls(client: openai.OpenAI) -> list[tuple[str, Any]]:
    messages = [{"role": "user", "content": "Is job 42 done?"}]
    whole = client.chat.completions.create(**{**COUNT, "messages": messages, "tools": [TOOL]})
    calls = [call.to_dict()["function"] for call in whole.choices[0].message.tool_calls or ()]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def chats(client: openai.OpenAI) -> dict[str, Any]:
    events = client.chat.completions.create(**COUNT, stream=True)
    found = client.embeddings.create(model="minilm", input=["Hi", "Hello"])
    try:
        text(client, model="gpt-4")
    except openai.APIStatusError as error:
        refusal = error.body
    return {
        "whole": text(client),
        "pieces": [event.choices[0].delta.content or "" for event in events],
        "async": asyncio.run(chats_async()),
        "calls": tool_calls(client),
        "embeddings": [len(one.embedding) for one in found.data],
        "refusal": refusal,
        "models": [model.id for model in client.models.list()],
    }


def batches(client: openai.OpenAI) -> dict[str, Any]:
    calls: Any = client.batches
    messages = [{"role": "user", "content": "What does this worker do?"}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 12}
    line = {"method": "POST", "url": CHAT, "body": body}
    content = lines({**line, "custom_id": f"c{number}"} for number in range(20))
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    window = {"completion_window": "24h", "metadata": {"a": "b"}}
    batch = wait_until_ended(
        calls.create(input_file_id=file.id, endpoint=CHAT, **window), calls.retrieve
    )
    answers = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    try:
        calls.retrieve("batch_x")
    except openai.NotFoundError as error:
        refusal = error.body
    return {
        "batch": batch.model_dump(),
        "answers": {
            line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
            for line in answers
        },
        # By pages.
        "listed": batch.id in [one.id for one in calls.list(limit=1)],
        "files": file.id in [one.id for one in client.files.list(limit=2)],
        "deleted": client.files.delete(batch.output_file_id).deleted,
        "refusal": refusal,
    }


PARTS: dict[str, Callable[[openai.OpenAI], Any]] = {"chats": chats, "batches": batches}


def main(way: str, address: str, key: str, part: str) -> None:
    with create_client(way, address, key) as client:
        answers = {"version": openai.__version__, part: PARTS[part](client)}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
