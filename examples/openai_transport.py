"""OpenAI's client without a process in between: each of its requests is a job of the endpoint.

Needs `openai` 3 or later; earlier ones take `httpx` in place of `httpx2`.
RUNPOD_ENDPOINT_ID names the endpoint, RUNPOD_API_KEY is the account's key.
"""

import os

import httpx2
import openai

from llm_worker_client import RunpodTransport

transport = RunpodTransport(os.environ["RUNPOD_ENDPOINT_ID"])
# Seconds without anything new: a worker may have to start first.
http_client = httpx2.Client(transport=transport, timeout=300)

with openai.OpenAI(api_key="unused", http_client=http_client) as client:
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count to ten."}],
        temperature=0,
        stream=True,
    )
    for event in stream:
        print(event.choices[0].delta.content or "", end="", flush=True)
    print()

    # What the platform's own gateway does not pass: forms, other verbs, bytes.
    file = client.files.create(file=("notes.txt", b"kept on the volume"), purpose="user_data")
    print(client.files.content(file.id).text)
    print("deleted:", client.files.delete(file.id).deleted)
