"""OpenAI's client through the proxy, used as with any other server.

Needs `openai`, and the proxy in another terminal:

    llm-worker-client proxy --endpoint "$RUNPOD_ENDPOINT_ID" --port 8080

OPENAI_BASE_URL is the proxy's URL with /v1. OPENAI_API_KEY is the proxy's PROXY_API_KEY; if that is
not set, any value works.
"""

import openai

with openai.OpenAI() as client:
    model = client.models.list().data[0].id
    stream = client.responses.create(model=model, input="Count to ten.", temperature=0, stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print()
