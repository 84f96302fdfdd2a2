"""Limits for texts, and truncation before tokenizing."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.scripted import CHAT

from worker.engine.run.requests.limits import limit_texts
from worker.engine.run.requests.long_requests import is_long
from worker.errors import InvalidInput
from worker.limits.inputs import RAW_SHAPE, BodyShape
from worker.limits.texts import LONG_CHARACTERS, MANY_PROMPTS, MANY_TOKENS
from worker.routes.vllm import ROUTES

# Characters of the longest text for a context of 20,000 tokens with at most 10 characters.
MAX_CHARACTERS = 200_000
LONGEST, TOO_LONG = "a" * MAX_CHARACTERS, "a" * (MAX_CHARACTERS + 1)


@pytest.fixture(autouse=True)
def _reset_mark() -> Iterator[None]:
    token = is_long.set(False)
    yield
    is_long.reset(token)


def fake_client(context: int = 20_000, per_token: int = 10, side: str = "right") -> Any:
    tokenizer = SimpleNamespace(max_chars_per_token=per_token, truncation_side=side)
    config = SimpleNamespace(max_model_len=context)
    return SimpleNamespace(renderer=SimpleNamespace(tokenizer=tokenizer), model_config=config)


def body_shape(path: str) -> BodyShape:
    return next((row.shape for row in ROUTES if row.path == path), RAW_SHAPE)


def conversation(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("", {"prompt": TOO_LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", TOO_LONG]}, "prompt"),
        (CHAT, conversation(LONGEST), "messages"),
        (CHAT, conversation([{"type": "text", "text": LONGEST}]), "messages"),
        (CHAT, {**conversation(LONGEST), "truncate_prompt_tokens": 1}, "messages"),
        ("/v1/messages", {"system": LONGEST, "messages": ["a"]}, "messages"),
        ("/v1/responses", {"input": TOO_LONG, "truncate_prompt_tokens": 1}, "input"),
        ("/v1/responses", {"input": [{"content": "a" * (MAX_CHARACTERS // 2)}, LONGEST]}, "input"),
        ("/v1/embeddings", {"input": [TOO_LONG]}, "input"),
        ("/score", {"text_1": "a", "text_2": [TOO_LONG]}, "text_2"),
        ("/rerank", {"query": "a", "documents": ["a", {"content": LONGEST}]}, "documents"),
        ("/tokenize", {"prompt": TOO_LONG}, "prompt"),
        ("/detokenize", {"tokens": [1] * (MAX_CHARACTERS + 1)}, "tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_text_beyond_the_context_is_refused(path: str, body: dict[str, Any], key: str) -> None:
    limit = "at most 200,000 are accepted: the context of this model has 20,000 tokens."
    message = rf"^{key}: [\d,]+ (characters|tokens), and {limit}$"
    with pytest.raises(InvalidInput, match=message) as caught:
        limit_texts(fake_client(), body, body_shape(path))
    assert caught.value.param == key


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": " " * MAX_CHARACTERS},
        {"prompt": [1] * 20_000},
        {"prompt": [[1] * 20_000, "a"]},
        {"prompt": [LONGEST] * 3},
        {"prompt": {"a": [None, 1.5, True]}, "messages": "a", "tokens": 5},
        conversation([{"type": "image_url", "image_url": {"url": TOO_LONG}}]),
        {**conversation("a"), "tools": [{"type": "function", "description": TOO_LONG}]},
        {"messages": None, "prompt": "a"},
    ],
    ids=["spaces", "ids", "lists", "several", "shapes", "image", "tools", "nothing"],
)
def test_bodies_within_the_limits_are_not_changed(body: dict[str, Any]) -> None:
    assert limit_texts(fake_client(), body, body_shape("/v1/completions")) is body


@pytest.mark.parametrize("path", ["", "/v1/completions"])
@pytest.mark.parametrize("prompt", [[1] * 20_001, [[1], [1] * 20_001]], ids=["one", "several"])
def test_token_ids_beyond_the_context_are_refused(path: str, prompt: Any) -> None:
    with pytest.raises(
        InvalidInput, match="20,001 tokens, and at most 20,000 are accepted"
    ) as caught:
        limit_texts(fake_client(), {"prompt": prompt}, body_shape(path))
    assert caught.value.param == "prompt"
    body = {"prompt": prompt, "truncate_prompt_tokens": 5}
    assert limit_texts(fake_client(), body, body_shape(path)) is body
    # Embeddings of long inputs can be computed in parts.
    assert limit_texts(fake_client(), {"input": prompt}, body_shape("/v1/embeddings"))


@pytest.mark.parametrize(
    ("context", "per_token", "limit", "path"),
    [
        pytest.param(10_000, 128, 1_000_000, "", id="a small limit for long tokens"),
        pytest.param(100_000, 128, 3_200_000, "", id="32 characters per token"),
        pytest.param(1_000, 10, 10_000, "", id="a small context"),
        pytest.param(100_000, 128, 1_000_000, "/tokenize", id="a response with the whole text"),
    ],
)
def test_the_limit_of_characters_depends_on_context_tokenizer_and_route(
    context: int, per_token: int, limit: int, path: str
) -> None:
    client = fake_client(context, per_token)
    # Texts that aren't long are left to vLLM.
    length = max(limit, LONG_CHARACTERS)
    assert limit_texts(client, {"prompt": "a" * length}, body_shape(path))
    with pytest.raises(InvalidInput, match=f"at most {limit:,} are accepted"):
        limit_texts(client, {"prompt": "a" * (length + 1)}, body_shape(path))


def test_texts_are_not_limited_without_a_tokenizer() -> None:
    client = fake_client()
    client.renderer.tokenizer = None
    assert limit_texts(client, {"prompt": "a" * 10_000_000}, RAW_SHAPE)


@pytest.mark.parametrize(
    ("options", "side", "expected"),
    [
        ({"truncate_prompt_tokens": 2}, "right", ("ab", 100)),
        ({"truncate_prompt_tokens": 2}, "left", ("yz", 100)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "right", ("yz", 100)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "left", ("ab", 100)),
        ({"truncate_prompt_tokens": -1}, "right", ("ab", MAX_CHARACTERS)),
        ({"truncate_prompt_tokens": 10**9}, "right", ("ab", MAX_CHARACTERS)),
        ({"truncate_prompt_tokens": 0}, "right", ("ab", 80)),
    ],
)
def test_a_text_is_truncated_before_tokenizing(
    options: dict[str, Any], side: str, expected: tuple[str, int]
) -> None:
    whole = "ab" + "m" * MAX_CHARACTERS + "yz"
    body = {"text_2": ["short", whole], "text_1": whole, "n": 1, **options}
    truncated = limit_texts(fake_client(side=side), body, body_shape("/score"))
    end, length = expected
    for text in (truncated["text_2"][1], truncated["text_1"]):
        assert len(text) == length
        assert text.startswith(end) or text.endswith(end)
    assert truncated == {
        **body,
        "text_2": ["short", truncated["text_1"]],
        "text_1": truncated["text_1"],
    }
    assert body["text_1"] is whole


@pytest.mark.parametrize(
    ("body", "long"),
    [
        ({"prompt": "a" * LONG_CHARACTERS}, False),
        ({"prompt": "a" * (LONG_CHARACTERS + 1)}, True),
        ({"prompt": ["a"] * MANY_PROMPTS}, False),
        ({"prompt": ["a"] * (MANY_PROMPTS + 1)}, True),
        ({"prompt": [1] * MANY_TOKENS}, False),
        ({"prompt": [1] * (MANY_TOKENS + 1)}, True),
        ({"prompt": [[1] * MANY_TOKENS, []]}, False),
        ({"prompt": [[1] * MANY_TOKENS, [1]]}, True),
        # Prompts whose log probabilities take more of each step than those of all lists may.
        ({"prompt": ["a"] * 24, "logprobs": 20}, False),
        ({"prompt": ["a"] * 25, "logprobs": 20}, True),
        ({"prompt": ["a"] * 2, "logprobs": 1, "n": 128}, False),
        ({"prompt": ["a"] * 2, "logprobs": 1, "n": 129}, True),
        ({"prompt": "a", "logprobs": 1, "n": 256}, False),
        ({"prompt": [1] * 100, "logprobs": 20}, False),
        # Text that a template may add to the conversation.
        ({"messages": [], "tools": [{"description": "a" * (LONG_CHARACTERS + 1)}]}, True),
        ({"messages": [], "tools": [{"a" * (LONG_CHARACTERS + 1): 1}]}, True),
        ({"messages": [], "tools": [{"enum": [1] * (LONG_CHARACTERS + 1)}]}, True),
        ({"messages": [], "chat_template_kwargs": {"a": "a" * (LONG_CHARACTERS + 1)}}, True),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_is_long_by_any_of_its_sizes(body: dict[str, Any], long: bool) -> None:
    limit_texts(fake_client(), body, RAW_SHAPE)
    assert is_long.get() is long
