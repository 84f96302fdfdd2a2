"""OpenAI's client through the proxy: a file of requests that are answered as a batch.

Needs `openai`, and the proxy in another terminal:

    llm-worker-client proxy --endpoint "$RUNPOD_ENDPOINT_ID" --port 8080

OPENAI_BASE_URL is the proxy's URL with /v1. OPENAI_API_KEY is the proxy's PROXY_API_KEY; if that is
not set, any value works.
"""

import json
import time

import openai

QUESTIONS = {"counting": "Count to ten.", "greeting": "Hello!"}
lines = [
    json.dumps(
        {
            "custom_id": id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": question}], "temperature": 0},
        }
    )
    for id, question in QUESTIONS.items()
]

with openai.OpenAI() as client:
    content = "\n".join(lines).encode()
    file = client.files.create(file=("questions.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(1)
        batch = client.batches.retrieve(batch.id)
    print(batch.status)
    for line in map(json.loads, client.files.content(batch.output_file_id or "").text.splitlines()):
        answer = line["response"]["body"]["choices"][0]["message"]["content"]
        print(f"{line['custom_id']}: {answer}")
