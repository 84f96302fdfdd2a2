"""Files and batches with OpenAI's client, sync and async; prints what it got, as JSON.

`python -m clients.openai_batches WAY ADDRESS KEY`: see openai_ways.
"""

import asyncio
import json
import sys
import time
from typing import Any, Literal

import openai
from clients.openai_ways import connected, connected_async

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}


def content(count: int) -> bytes:
    body = {
        "messages": [{"role": "user", "content": "What does this worker do?"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    lines = (
        {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": body}
        for number in range(count)
    )
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def answers(text: str) -> dict[str, str]:
    lines = [json.loads(line) for line in text.splitlines()]
    return {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in lines
    }


def sync() -> dict[str, Any]:
    found: dict[str, Any]
    with connected(*sys.argv[1:]) as client:
        file = client.files.create(file=("in.jsonl", content(20)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
        )
        while batch.status not in ENDED:
            time.sleep(0.2)
            batch = client.batches.retrieve(batch.id)
        other_file = client.files.create(file=content(50_000), purpose="batch")
        other = client.batches.create(
            input_file_id=other_file.id, endpoint=CHAT, completion_window="24h"
        )
        cancelling = client.batches.cancel(other.id)
        while other.status not in ENDED:
            time.sleep(0.2)
            other = client.batches.retrieve(other.id)
        found = {
            "batch": batch.model_dump(),
            "answers": answers(client.files.content(batch.output_file_id or "").text),
            "cancelling": cancelling.status,
            "cancelled": other.status,
            "listed": [one.id for one in client.batches.list(limit=1)],
            "ids": [other.id, batch.id],
            "deleted": client.files.delete(batch.output_file_id or "").deleted,
        }
        try:
            client.batches.retrieve("batch_x")
        except openai.NotFoundError as error:
            found["refusal"] = error.body
        return found


async def asynchronous() -> dict[str, Any]:
    async with connected_async(*sys.argv[1:]) as client:
        file = await client.files.create(file=("in.jsonl", content(5)), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        while batch.status not in ENDED:
            await asyncio.sleep(0.2)
            batch = await client.batches.retrieve(batch.id)
        text = (await client.files.content(batch.output_file_id or "")).text
        return {
            "answers": answers(text),
            "listed": [one.id async for one in client.files.list(limit=2, purpose="batch")],
            "id": file.id,
        }


answered = {"version": openai.__version__, "sync": sync(), "async": asyncio.run(asynchronous())}
json.dump(answered, sys.stdout)
