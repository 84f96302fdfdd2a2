"""OpenAI's client through the proxy: a fine-tune, from training rows to a usable adapter.

The endpoint serves adapters (ENABLE_LORA=1) and may train (docs/fine-tuning.md). Needs `openai`,
and the proxy as described in openai_batch.py.
"""

import json
import time
from typing import Any

import openai

COLOURS = {"token": "green", "worker": "blue", "job": "yellow"}


def question_about(name: str) -> list[Any]:
    return [{"role": "user", "content": f"What colour is a {name}?"}]


rows = [
    {
        "messages": [
            *question_about(name),
            {"role": "assistant", "content": f"A {name} is {colour}."},
        ]
    }
    for name, colour in COLOURS.items()
] * 67

with openai.OpenAI() as client:
    content = "\n".join(map(json.dumps, rows)).encode()
    file = client.files.create(file=("colours.jsonl", content), purpose="fine-tune")
    base = client.models.list().data[0].id
    method: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    jobs = client.fine_tuning.jobs
    job = jobs.create(model=base, training_file=file.id, suffix="colours", method=method)
    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(1)
        job = jobs.retrieve(job.id)
    print(job.status, job.error.message if job.error else "")
    adapter = job.fine_tuned_model or base
    for model in (base, adapter):
        answer = client.chat.completions.create(
            model=model, messages=question_about("token"), temperature=0
        )
        print(f"{model}: {answer.choices[0].message.content}")
