"""OpenAI's client: an answer that matches a schema, as an object of a class.

Needs `pydantic`, which comes with `openai`. OPENAI_BASE_URL and OPENAI_API_KEY are as in
openai_chat.py.
"""

import openai
from pydantic import BaseModel


class Worker(BaseModel):
    """The exact fields of the answer."""

    name: str
    streams: bool
    chunks: list[int]


with openai.OpenAI() as client:
    completion = client.chat.completions.parse(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Describe the worker as JSON."}],
        response_format=Worker,
        temperature=0,
        # A limit in tokens, for a model that never ends a list or white space.
        max_tokens=200,
    )
    print(completion.choices[0].message.parsed)
