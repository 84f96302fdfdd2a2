"""OpenAI's client through the proxy, as for any server: nothing in it knows of RunPod.

Needs `openai`, and the proxy in another terminal:

    llm-worker-client proxy --endpoint "$RUNPOD_ENDPOINT_ID" --port 8080

OPENAI_BASE_URL is its address with /v1. OPENAI_API_KEY is PROXY_API_KEY, or anything without one.
"""

import openai

with openai.OpenAI() as client:
    model = client.models.list().data[0].id
    stream = client.responses.create(model=model, input="Count to ten.", temperature=0, stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print()
