"""OpenAI's client without a proxy process: each of its requests is a job of the endpoint.

Needs `openai` 3 or later; earlier versions take `httpx` instead of `httpx2`.
RUNPOD_ENDPOINT_ID is the endpoint's id, RUNPOD_API_KEY your account's key.
"""

import os

import httpx2
import openai

from llm_worker_client import RunpodTransport

transport = RunpodTransport(os.environ["RUNPOD_ENDPOINT_ID"])
# Timeout in seconds without any new data; a worker may have to start first.
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

    # The platform's own gateway does not support these: forms, other HTTP methods, and binary data.
    file = client.files.create(file=("notes.txt", b"kept on the volume"), purpose="user_data")
    print(client.files.content(file.id).text)
    print("deleted:", client.files.delete(file.id).deleted)
