"""How much text is taken, what is cut of it, and who waits for whom when it is tokenized."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.scripted import CHAT
from support.processes.background import HUNG_S

from worker.engine.run.requests.texts import (
    LONG,
    MANY,
    MANY_TOKENS,
    bounded,
    is_long,
    keep_a_thread_free,
    mark,
)
from worker.errors import InvalidInput
from worker.limits.shapes import RAW, Shape
from worker.routes.vllm import ROUTES

# The longest text of a context of 20,000 tokens of at most 10 characters.
MOST = 200_000
A, TOO_LONG = "a" * MOST, "a" * (MOST + 1)


@pytest.fixture(autouse=True)
def _nothing_long_before() -> Iterator[None]:
    before = is_long.set(False)
    yield
    is_long.reset(before)


def engine(context: int = 20_000, per_token: int = 10, side: str = "right") -> Any:
    tokenizer = SimpleNamespace(max_chars_per_token=per_token, truncation_side=side)
    config = SimpleNamespace(max_model_len=context)
    return SimpleNamespace(renderer=SimpleNamespace(tokenizer=tokenizer), model_config=config)


def shape(path: str) -> Shape:
    return next((row.shape for row in ROUTES if row.path == path), RAW)


def conversation(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("", {"prompt": TOO_LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", TOO_LONG]}, "prompt"),
        (CHAT, conversation(A), "messages"),
        (CHAT, conversation([{"type": "text", "text": A}]), "messages"),
        (CHAT, {**conversation(A), "truncate_prompt_tokens": 1}, "messages"),
        ("/v1/messages", {"system": A, "messages": ["a"]}, "messages"),
        ("/v1/responses", {"input": TOO_LONG, "truncate_prompt_tokens": 1}, "input"),
        ("/v1/responses", {"input": [{"content": "a" * (MOST // 2)}, A]}, "input"),
        ("/v1/embeddings", {"input": [TOO_LONG]}, "input"),
        ("/score", {"text_1": "a", "text_2": [TOO_LONG]}, "text_2"),
        ("/rerank", {"query": "a", "documents": ["a", {"content": A}]}, "documents"),
        ("/tokenize", {"prompt": TOO_LONG}, "prompt"),
        ("/detokenize", {"tokens": [1] * (MOST + 1)}, "tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_text_beyond_the_context_is_refused(path: str, body: dict[str, Any], key: str) -> None:
    limit = "at most 200,000 are taken: the context of this model has 20,000 tokens."
    message = rf"^{key}: [\d,]+ (characters|tokens), and {limit}$"
    with pytest.raises(InvalidInput, match=message) as caught:
        bounded(engine(), body, shape(path))
    assert caught.value.param == key


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": " " * MOST},
        {"prompt": [1] * 20_000},
        {"prompt": [[1] * 20_000, "a"]},
        {"prompt": [A] * 3},
        {"prompt": {"a": [None, 1.5, True]}, "messages": "a", "tokens": 5},
        conversation([{"type": "image_url", "image_url": {"url": TOO_LONG}}]),
        {**conversation("a"), "tools": [{"type": "function", "description": TOO_LONG}]},
        {"messages": None, "prompt": "a"},
    ],
    ids=["spaces", "ids", "lists", "several", "shapes", "image", "tools", "nothing"],
)
def test_other_bodies_are_not_changed(body: dict[str, Any]) -> None:
    assert bounded(engine(), body, shape("/v1/completions")) is body


@pytest.mark.parametrize("path", ["", "/v1/completions"])
@pytest.mark.parametrize("prompt", [[1] * 20_001, [[1], [1] * 20_001]], ids=["one", "several"])
def test_token_ids_that_can_not_fit_the_context_are_refused(path: str, prompt: Any) -> None:
    with pytest.raises(InvalidInput, match="20,001 tokens, and at most 20,000 are taken") as caught:
        bounded(engine(), {"prompt": prompt}, shape(path))
    assert caught.value.param == "prompt"
    body = {"prompt": prompt, "truncate_prompt_tokens": 5}
    assert bounded(engine(), body, shape(path)) is body
    # Embeddings of long inputs can be made in parts.
    assert bounded(engine(), {"input": prompt}, shape("/v1/embeddings"))


@pytest.mark.parametrize(
    ("context", "per_token", "most", "path"),
    [
        pytest.param(10_000, 128, 1_000_000, "", id="few characters: tokens may be as long"),
        pytest.param(100_000, 128, 3_200_000, "", id="many: at most 32 for each token"),
        pytest.param(1_000, 10, 10_000, "", id="a small context"),
        pytest.param(100_000, 128, 1_000_000, "/tokenize", id="what is answered whole"),
    ],
)
def test_so_many_characters_are_taken(context: int, per_token: int, most: int, path: str) -> None:
    client = engine(context, per_token)
    # What is not long is left to vLLM.
    taken = max(most, LONG)
    assert bounded(client, {"prompt": "a" * taken}, shape(path))
    with pytest.raises(InvalidInput, match=f"at most {most:,} are taken"):
        bounded(client, {"prompt": "a" * (taken + 1)}, shape(path))


def test_a_model_without_a_tokenizer_takes_no_text_that_could_be_long() -> None:
    client = engine()
    client.renderer.tokenizer = None
    assert bounded(client, {"prompt": "a" * 10_000_000}, RAW)


@pytest.mark.parametrize(
    ("asked", "side", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "right", ("ab", 100)),
        ({"truncate_prompt_tokens": 2}, "left", ("yz", 100)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "right", ("yz", 100)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "left", ("ab", 100)),
        ({"truncate_prompt_tokens": -1}, "right", ("ab", MOST)),
        ({"truncate_prompt_tokens": 10**9}, "right", ("ab", MOST)),
        ({"truncate_prompt_tokens": 0}, "right", ("ab", 80)),
    ],
)
def test_a_text_is_cut_beforehand(asked: dict[str, Any], side: str, kept: tuple[str, int]) -> None:
    whole = "ab" + "m" * MOST + "yz"
    body = {"text_2": ["short", whole], "text_1": whole, "n": 1, **asked}
    cut = bounded(engine(side=side), body, shape("/score"))
    mark_, length = kept
    for text in (cut["text_2"][1], cut["text_1"]):
        assert len(text) == length
        assert text.startswith(mark_) or text.endswith(mark_)
    assert cut == {**body, "text_2": ["short", cut["text_1"]], "text_1": cut["text_1"]}
    assert body["text_1"] is whole


@pytest.mark.parametrize(
    ("body", "long"),
    [
        ({"prompt": "a" * LONG}, False),
        ({"prompt": "a" * (LONG + 1)}, True),
        ({"prompt": ["a"] * MANY}, False),
        ({"prompt": ["a"] * (MANY + 1)}, True),
        ({"prompt": [1] * MANY_TOKENS}, False),
        ({"prompt": [1] * (MANY_TOKENS + 1)}, True),
        ({"prompt": [[1] * MANY_TOKENS, []]}, False),
        ({"prompt": [[1] * MANY_TOKENS, [1]]}, True),
        # What a template may show beside a conversation.
        ({"messages": [], "tools": [{"description": "a" * (LONG + 1)}]}, True),
        ({"messages": [], "chat_template_kwargs": {"a": "a" * (LONG + 1)}}, True),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_is_long_by_any_measure_of_it(body: dict[str, Any], long: bool) -> None:
    bounded(engine(), body, RAW)
    assert is_long.get() is long


def test_long_requests_wait_for_each_other_and_leave_a_thread() -> None:
    executor = ThreadPoolExecutor(2)
    keep_a_thread_free(executor, 2)
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def work() -> bool:
        begun.release()
        return go_on.wait(HUNG_S)

    def submit_long(function: Any, *args: Any) -> Any:
        mark(long=True)
        mark(long=False)
        return executor.submit(function, *args)

    several = [Context().run(submit_long, work) for _ in range(3)]
    assert begun.acquire(timeout=HUNG_S)
    # While one is busy, the others of its kind have not begun, and anybody else is served.
    assert Context().run(executor.submit, str, 5).result(HUNG_S) == "5"
    assert not begun.acquire(blocking=False)
    go_on.set()
    assert [future.result(HUNG_S) for future in several] == [True] * 3
    with pytest.raises(ZeroDivisionError):
        Context().run(submit_long, divmod, 1, 0).result(HUNG_S)


def test_a_single_thread_is_everybodys() -> None:
    executor = ThreadPoolExecutor(1)
    submit = executor.submit
    keep_a_thread_free(executor, 1)
    assert executor.submit == submit
