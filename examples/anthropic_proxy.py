"""Anthropic's client through the proxy.

Needs `anthropic`, and the proxy in another terminal:

    llm-worker-client proxy --endpoint "$RUNPOD_ENDPOINT_ID" --port 8080

ANTHROPIC_BASE_URL is the proxy's URL. ANTHROPIC_API_KEY is the proxy's PROXY_API_KEY; if that is
not set, any value works.
"""

import anthropic

with anthropic.Anthropic() as client:
    # The worker lists its models in OpenAI's format.
    model = client.get("/v1/models", cast_to=dict[str, list[dict[str, str]]])["data"][0]["id"]
    with client.messages.stream(
        model=model,
        messages=[{"role": "user", "content": "Count to ten."}],
        max_tokens=100,
        extra_body={"temperature": 0},
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()
