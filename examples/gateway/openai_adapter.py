"""OpenAI's client: the adapters (LoRA) of an endpoint, which requests name like models.

They come from LORA_MODULES, from adapters/ on the volume, and from fine-tunes; the endpoint has
ENABLE_LORA=1. OPENAI_BASE_URL and OPENAI_API_KEY are as in openai_chat.py.
"""

import openai

with openai.OpenAI() as client:
    base, *others = client.models.list().data
    # The parent of an adapter is its base model.
    adapters = [model.id for model in others if (model.model_extra or {}).get("parent")]
    print("adapters:", ", ".join(adapters) or "none")
    for name in [base.id, *adapters[:1]]:
        answer = client.completions.create(
            model=name, prompt="Once upon a time", max_tokens=12, temperature=0
        )
        print(f"{name}:{answer.choices[0].text}")
