"""Tests of embeddings with the `openai` package and the real embedder next to the demo model."""

import asyncio
from typing import Any

import openai
import pytest
from support.models.minilm import DIMENSIONS

EMBEDDER = "minilm"
# Texts, and the first components of their embeddings as computed by transformers.
TEXTS = {
    "The job is done.": [-0.09452, 0.07295, 0.00302, -0.01519],
    "The work has been finished.": [-0.09827, 0.05952, 0.01952, -0.00276],
    "Grüße! 你好 🤖": [-0.0026, 0.0843, 0.03006, -0.02361],
}
TEXT = next(iter(TEXTS))


async def create_embeddings(
    client: openai.AsyncOpenAI, value: Any, **more: Any
) -> list[list[float]]:
    """Return embeddings; by default this client requests base64 and decodes it."""
    whole = await client.embeddings.create(model=EMBEDDER, input=value, **more)
    assert [item.index for item in whole.data] == list(range(len(whole.data)))
    return [item.embedding for item in whole.data]


async def test_embeddings_match_those_of_transformers(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    found = await create_embeddings(async_openai_client, [*TEXTS])
    assert [len(embedding) for embedding in found] == [DIMENSIONS] * 3
    for embedding, begin in zip(found, TEXTS.values(), strict=True):
        assert embedding[:4] == pytest.approx(begin, abs=1e-3)


async def test_every_form_of_input_and_output_returns_the_same_embedding(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    # The route is not part of OpenAI's API, so the package has no method for it.
    params = {"model": EMBEDDER, "prompt": TEXT}
    tokenized: Any = await async_openai_client.post("/tokenize", cast_to=object, body=params)
    tokens = tokenized["tokens"]
    (expected,), *others = await asyncio.gather(
        create_embeddings(async_openai_client, TEXT),
        create_embeddings(async_openai_client, TEXT, encoding_format="float"),
        create_embeddings(async_openai_client, [TEXT]),
        create_embeddings(async_openai_client, tokens),
        create_embeddings(async_openai_client, [tokens, tokens]),
    )
    for other in [embedding for answer in others for embedding in answer]:
        assert other == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"input": "Hi", "dimensions": 64}, "Matryoshka"),
        ({"input": "token " * 600}, "256"),
        ({"input": []}, "at least one prompt"),
        ({"input": [1_000_000]}, "vocab"),
        ({"input": "Hi", "encoding_format": "bytes"}, "float or base64"),
    ],
)
async def test_a_request_that_the_embedder_cannot_answer_is_a_bad_request(
    async_openai_client: openai.AsyncOpenAI, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        await async_openai_client.embeddings.create(model=EMBEDDER, **params)
