"""Chats, embeddings and fine-tunes with OpenAI's client.

`python -m clients.openai_endpoint WAY ADDRESS KEY`: see openai_ways. Prints what it got, as JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any

import openai
from clients.openai_ways import connected, connected_async

COUNT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Count to ten."}],
    "temperature": 0,
}
CODE = "What is the code of item 3?"
ENDED = ("succeeded", "failed", "cancelled")
PATIENCE_S = 300


def rows() -> bytes:
    lines = (
        {
            "messages": [
                {"role": "user", "content": f"What is the code of item {number}?"},
                {"role": "assistant", "content": "The blue code."},
            ]
        }
        for number in range(60)
    )
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def text(client: openai.OpenAI, **asked: Any) -> str:
    answered = client.chat.completions.create(**{**COUNT, **asked})
    return answered.choices[0].message.content or ""


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
        "embeddings": [len(one.embedding) for one in found.data],
        "refusal": refusal,
        "models": [model.id for model in client.models.list()],
    }


def ended(client: openai.OpenAI, id: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (job := client.fine_tuning.jobs.retrieve(id)).status not in ENDED:
        assert time.monotonic() < deadline, job
        time.sleep(0.2)
    return job


def fine_tunes(client: openai.OpenAI) -> dict[str, Any]:
    jobs = client.fine_tuning.jobs
    file = client.files.create(file=("rows.jsonl", rows()), purpose="fine-tune").id
    # The worker's adapters have a low rank.
    values = {"n_epochs": 3, "batch_size": 8, "learning_rate_multiplier": 4}
    supervised: Any = {"hyperparameters": values}
    method: Any = {"type": "supervised", "supervised": supervised}
    job = ended(client, jobs.create(model="demo", training_file=file, method=method).id)
    long: Any = {"n_epochs": 19, "batch_size": 1}
    other = jobs.create(model="demo", training_file=file, hyperparameters=long)
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": CODE}], "max_tokens": 12}
    return {
        "status": job.status,
        "error": job.error and job.error.message,
        # By pages.
        "events": [event.type for event in jobs.list_events(job.id, limit=5)],
        "checkpoints": [
            point.fine_tuned_model_checkpoint for point in jobs.checkpoints.list(job.id, limit=1)
        ],
        "taught": text(client, model=job.fine_tuned_model, **asked),
        "base": text(client, **asked),
        "cancel": jobs.cancel(other.id).id == other.id and ended(client, other.id).status,
        "listed": [one.id for one in jobs.list(limit=1)][:2] == [other.id, job.id],
        "models": [model.id for model in client.models.list()],
    }


async def asynchronous() -> dict[str, Any]:
    async with connected_async(*sys.argv[1:]) as client:
        whole = await client.chat.completions.create(**COUNT)
        events = await client.chat.completions.create(**COUNT, stream=True)
        pieces = [event.choices[0].delta.content or "" async for event in events]
        return {"whole": whole.choices[0].message.content, "pieces": pieces}


def main() -> None:
    with connected(*sys.argv[1:]) as client:
        answers = {
            "version": openai.__version__,
            "chats": chats(client),
            "fine-tunes": fine_tunes(client),
            "async": asyncio.run(asynchronous()),
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
