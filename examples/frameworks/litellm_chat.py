"""LiteLLM: a streamed chat, and embeddings.

    python examples/frameworks/litellm_chat.py minilm

Needs `litellm`. The argument is the embedding model's name. OPENAI_BASE_URL is
https://api.runpod.ai/v2/<endpoint id>/openai/v1, OPENAI_API_KEY your account's key.
"""

import sys

import litellm
import openai

model = openai.OpenAI().models.list().data[0].id

# The part before the slash selects the API; the rest is the model's name at the endpoint.
stream = litellm.completion(
    f"openai/{model}",
    messages=[{"role": "user", "content": "Count to ten."}],
    temperature=0,
    stream=True,
)
for event in stream:
    print(event.choices[0].delta.content or "", end="", flush=True)
print()

found = litellm.embedding(f"openai/{sys.argv[1]}", input=["Hi", "Hello"])
print([len(item["embedding"]) for item in found.data])
