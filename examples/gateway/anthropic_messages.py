"""Anthropic's client, connected directly to an endpoint: a streamed message and a token count.

ANTHROPIC_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai (without /v1), and
ANTHROPIC_AUTH_TOKEN your account's key. ANTHROPIC_API_KEY does not work, because the client sends
it in a header that the platform does not read.
"""

import anthropic
from anthropic.types import MessageParam

with anthropic.Anthropic() as client:
    # The worker lists its models in OpenAI's format.
    model = client.get("/v1/models", cast_to=dict[str, list[dict[str, str]]])["data"][0]["id"]
    messages: list[MessageParam] = [{"role": "user", "content": "Count to ten."}]
    with client.messages.stream(
        model=model, messages=messages, max_tokens=100, extra_body={"temperature": 0}
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()
    print(client.messages.count_tokens(model=model, messages=messages).input_tokens, "tokens asked")
