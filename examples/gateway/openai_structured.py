"""OpenAI's client: an answer that is held to a schema, as an object of a class.

Needs `pydantic`, which comes with `openai`. OPENAI_BASE_URL and OPENAI_API_KEY are as in
openai_chat.py.
"""

import openai
from pydantic import BaseModel


class Worker(BaseModel):
    """What the answer has to have, and nothing else."""

    name: str
    streams: bool
    chunks: list[int]


with openai.OpenAI() as client:
    completion = client.chat.completions.parse(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Describe the worker as JSON."}],
        response_format=Worker,
        temperature=0,
        # Tokens: a model that finds no end of a list or of white space is stopped.
        max_tokens=200,
    )
    print(completion.choices[0].message.parsed)
