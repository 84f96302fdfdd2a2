"""Calls of OpenAI's client: `python -m clients.openai_calls WAY ADDRESS KEY PART`, see openai_ways.

Prints what it got, as JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import openai
from clients.openai_ways import connected, connected_async

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
COUNT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Count to ten."}],
    "temperature": 0,
}
CODE = "What is the code of item 3?"
ENDED = {"succeeded", "completed", "failed", "expired", "cancelled"}
PATIENCE_S = 300
# As many tokens as there is room for.
LONG: dict[str, Any] = {**COUNT, "max_tokens": 1900, "extra_body": {"ignore_eos": True}}


def lines(objects: Iterable[Any]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


def ended(found: Any, retrieve: Callable[[str], Any]) -> Any:
    """Poll until it has ended, as callers do."""
    deadline = time.monotonic() + PATIENCE_S
    while found.status not in ENDED:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
        found = retrieve(found.id)
    return found


def text(client: openai.OpenAI, **asked: Any) -> str:
    answered = client.chat.completions.create(**{**COUNT, **asked})
    return answered.choices[0].message.content or ""


async def chats_async() -> dict[str, Any]:
    async with connected_async(*sys.argv[1:4]) as client:
        whole = await client.chat.completions.create(**COUNT)
        events = await client.chat.completions.create(**COUNT, stream=True)
        pieces = [event.choices[0].delta.content or "" async for event in events]
        return {"whole": whole.choices[0].message.content, "pieces": pieces}


def chats(client: openai.OpenAI) -> dict[str, Any]:
    events = client.chat.completions.create(**COUNT, stream=True)
    found = client.embeddings.create(model="minilm", input=["Hi", "Hello"])
    try:
        text(client, model="gpt-4")
    except openai.NotFoundError as error:
        refusal = error.body
    return {
        "whole": text(client),
        "pieces": [event.choices[0].delta.content or "" for event in events],
        "async": asyncio.run(chats_async()),
        "embeddings": [len(one.embedding) for one in found.data],
        "refusal": refusal,
        "models": [model.id for model in client.models.list()],
    }


def batch_input(count: int) -> bytes:
    asked = {"messages": [{"role": "user", "content": "What does this worker do?"}]}
    body = {**asked, "temperature": 0, "max_tokens": 12}
    named = ({"custom_id": f"c{number}", "body": body} for number in range(count))
    return lines({**one, "method": "POST", "url": CHAT} for one in named)


def batches(client: openai.OpenAI) -> dict[str, Any]:
    calls: Any = client.batches

    def created(count: int) -> Any:
        file = client.files.create(file=("in.jsonl", batch_input(count)), purpose="batch")
        asked = {"completion_window": "24h", "metadata": {"a": "b"}}
        return calls.create(input_file_id=file.id, endpoint=CHAT, **asked)

    batch = ended(created(20), calls.retrieve)
    content = client.files.content(batch.output_file_id).text
    answers = [json.loads(line) for line in content.splitlines()]
    other = created(50_000)
    cancelling = calls.cancel(other.id).status
    cancelled = ended(other, calls.retrieve).status
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
        "cancelling": cancelling,
        "cancelled": cancelled,
        # By pages.
        "listed": [one.id for one in calls.list(limit=1)][:2] == [other.id, batch.id],
        "files": batch.input_file_id in [one.id for one in client.files.list(limit=2)],
        "deleted": client.files.delete(batch.output_file_id).deleted,
        "refusal": refusal,
    }


def fine_tunes(client: openai.OpenAI) -> dict[str, Any]:
    jobs: Any = client.fine_tuning.jobs
    rows = lines(
        {
            "messages": [
                {"role": "user", "content": f"What is the code of item {number}?"},
                {"role": "assistant", "content": "The blue code."},
            ]
        }
        for number in range(60)
    )
    file = client.files.create(file=("rows.jsonl", rows), purpose="fine-tune").id
    # The worker's adapters have a low rank.
    values = {"n_epochs": 3, "batch_size": 8, "learning_rate_multiplier": 4}
    method = {"type": "supervised", "supervised": {"hyperparameters": values}}
    job = ended(jobs.create(model="demo", training_file=file, method=method), jobs.retrieve)
    long = {"n_epochs": 19, "batch_size": 1}
    other = jobs.create(model="demo", training_file=file, hyperparameters=long)
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": CODE}], "max_tokens": 12}
    points = jobs.checkpoints.list(job.id, limit=1)
    return {
        "status": job.status,
        "error": job.error and job.error.message,
        # By pages.
        "events": [event.type for event in jobs.list_events(job.id, limit=5)],
        "checkpoints": [point.fine_tuned_model_checkpoint for point in points],
        "taught": text(client, model=job.fine_tuned_model, **asked),
        "base": text(client, **asked),
        "cancel": ended(jobs.cancel(other.id), jobs.retrieve).status,
        "listed": [one.id for one in jobs.list(limit=1)][:2] == [other.id, job.id],
        "models": [model.id for model in client.models.list()],
    }


def leaving(client: openai.OpenAI) -> list[str]:
    """Leave in the middle of a stream: return the ids of the answers that had begun."""
    events = client.chat.completions.create(**LONG, stream=True)
    id: str = next(iter(events)).id
    events.close()
    return [id, *asyncio.run(leaving_async())]


async def leaving_async() -> list[str]:
    """Close a stream, and cancel a task in the middle of another."""
    ids: asyncio.Queue[str] = asyncio.Queue()

    async def read(client: openai.AsyncOpenAI) -> None:
        async for event in await client.chat.completions.create(**LONG, stream=True):
            ids.put_nowait(event.id)

    async with connected_async(*sys.argv[1:4]) as client:
        events = await client.chat.completions.create(**LONG, stream=True)
        closed: str = (await anext(aiter(events))).id
        await events.close()
        reading = asyncio.create_task(read(client))
        cancelled = await ids.get()
        reading.cancel()
        await asyncio.wait({reading})
    return [closed, cancelled]


PARTS: dict[str, Callable[[openai.OpenAI], Any]] = {
    "chats": chats,
    "batches": batches,
    "fine-tunes": fine_tunes,
    "leaving": leaving,
}


def main(way: str, address: str, key: str, part: str) -> None:
    with connected(way, address, key) as client:
        answers = {"version": openai.__version__, part: PARTS[part](client)}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
