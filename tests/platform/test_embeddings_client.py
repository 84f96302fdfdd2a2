"""Embeddings by the `openai` package, from the real embedder that runs next to the demo model."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from demo_model import ANSWERS
from support.models.minilm import DIMENSIONS, Reference
from support.processes.local_endpoint import LocalEndpoint

EMBEDDER = "minilm"
TEXTS = ["The job is done.", "The work has been finished.", "Grüße! 你好 🤖"]


@pytest.fixture
async def client(make_endpoint: LocalEndpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    url = make_endpoint.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


async def embedded(client: openai.AsyncOpenAI, given: Any, **more: Any) -> list[list[float]]:
    """Ask for embeddings; by default this client asks for base64 and decodes it."""
    whole = await client.embeddings.create(model=EMBEDDER, input=given, **more)
    assert [item.index for item in whole.data] == list(range(len(whole.data)))
    return [item.embedding for item in whole.data]


async def test_embeddings_are_those_of_the_model(
    client: openai.AsyncOpenAI, reference: Reference
) -> None:
    for text, embedding in zip(TEXTS, await embedded(client, TEXTS), strict=True):
        assert len(embedding) == DIMENSIONS
        assert reference.cosine(text, embedding) > 0.9999
    assert reference.cosine(TEXTS[0], (await embedded(client, TEXTS[1]))[0]) < 0.99


async def test_every_form_of_input_and_output_gives_the_same(client: openai.AsyncOpenAI) -> None:
    # Not OpenAI's, so the package has no method for it.
    asked = {"model": EMBEDDER, "prompt": TEXTS[0]}
    tokenized: Any = await client.post("/tokenize", cast_to=object, body=asked)
    tokens = tokenized["tokens"]
    (plain,), *others = await asyncio.gather(
        embedded(client, TEXTS[0]),
        embedded(client, TEXTS[0], encoding_format="float"),
        embedded(client, [TEXTS[0]]),
        embedded(client, tokens),
        embedded(client, [tokens, tokens]),
    )
    for other in [embedding for answer in others for embedding in answer]:
        assert other == pytest.approx(plain, abs=1e-5)


async def test_chats_and_embeddings_run_side_by_side(client: openai.AsyncOpenAI) -> None:
    async def chat() -> Any:
        messages: Any = [{"role": "user", "content": "Count to ten."}]
        whole = await client.chat.completions.create(model="demo", messages=messages, temperature=0)
        return whole.choices[0].message.content

    asked = [asking for _ in range(4) for asking in (chat(), embedded(client, TEXTS))]
    answers = await asyncio.gather(*asked)
    assert answers[::2] == [ANSWERS["Count to ten."]] * 4
    assert [len(answer) for answer in answers[1::2]] == [len(TEXTS)] * 4


async def test_both_models_are_listed_and_have_their_own_routes(client: openai.AsyncOpenAI) -> None:
    assert EMBEDDER in [model.id async for model in client.models.list()]
    with pytest.raises(openai.APIStatusError) as refused:
        await client.embeddings.create(model="demo", input="Hi")
    assert 400 <= refused.value.status_code < 500
    with pytest.raises(openai.APIStatusError) as refused:
        await client.completions.create(model=EMBEDDER, prompt="Hi")
    assert 400 <= refused.value.status_code < 500


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"input": "Hi", "dimensions": 64}, "Matryoshka"),
        ({"input": "token " * 600}, "256"),
        ({"input": []}, "at least one prompt"),
        ({"input": [1_000_000]}, "vocab"),
        ({"input": "Hi", "encoding_format": "bytes"}, "float or base64"),
    ],
)
async def test_a_request_that_the_embedder_cannot_answer_is_a_bad_request(
    client: openai.AsyncOpenAI, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        await client.embeddings.create(model=EMBEDDER, **asked)
