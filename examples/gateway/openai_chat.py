"""OpenAI's client: a streamed chat that is printed as it arrives, with its number of tokens.

OPENAI_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai/v1, OPENAI_API_KEY the account's
key.
"""

import openai

with openai.OpenAI() as client:
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count to ten."}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for event in stream:
        for choice in event.choices:
            print(choice.delta.content or "", end="", flush=True)
        if event.usage:
            print(f"\n{event.usage.completion_tokens} tokens")
