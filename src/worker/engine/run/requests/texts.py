"""Long requests: their mark, a separate thread pool for their texts; and texts of tokens."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from pkgutil import resolve_name
from typing import Any
from weakref import WeakKeyDictionary

from worker.engine.seam.patches import INCOMPLETE_TEXT, SUBMIT, TOKEN_TEXTS
from worker.engine.seam.protocols import Client
from worker.limits import texts
from worker.limits.shapes import BodyShape

# Whether the current task belongs to a long request, or to a list of requests.
is_long: ContextVar[bool] = ContextVar("is_long", default=False)


def limit_texts(client: Client, body: Mapping[str, Any], shape: BodyShape) -> Mapping[str, Any]:
    """Return a body with texts within the limits, and mark the current task if they are long.

    Raises:
        InvalidInput: If a text or a list of token ids is too large (see ``worker.limits.texts``).
    """
    context, tokenizer = client.model_config.max_model_len, client.renderer.tokenizer
    limited = texts.limit_texts(body, shape, context, tokenizer)
    mark_if_long(long=limited.is_long)
    return limited.body


def mark_if_long(*, long: bool) -> None:
    """Mark the current task as part of a long request if ``long``; a marked task stays marked."""
    is_long.set(long or is_long.get())


@cache
def remember_token_texts() -> None:
    """Let vLLM decode each token with a log probability once, instead of in each step.

    The texts of a model's tokens take at most some megabytes.
    """
    decode: Callable[[Any, list[int]], list[str]] = TOKEN_TEXTS.original
    correct: Callable[[Any, int, list[int]], str] = INCOMPLETE_TEXT.original
    texts_by_tokenizer: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()

    def token_texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
        known = texts_by_tokenizer.setdefault(tokenizer, {})
        if unknown := [*{token for token in token_ids if token not in known}]:
            known.update(zip(unknown, decode(tokenizer, unknown), strict=True))
        return [known[token] for token in token_ids]

    def correct_text(processor: Any, token: int, preceding: list[int]) -> str:
        """Return the text of a token that ends within a character."""
        tokenizer = processor.tokenizer
        last_texts = token_texts(tokenizer, preceding[-1:])
        is_incomplete = not any(map(_ends_within_character, last_texts))
        # A character that is incomplete with all preceding tokens is so with fewer of them.
        if is_incomplete or _ends_within_character(tokenizer.decode([*preceding, token])):
            return ""
        return correct(processor, token, preceding)

    TOKEN_TEXTS.replace_in_modules(token_texts)
    INCOMPLETE_TEXT.replace(resolve_name(INCOMPLETE_TEXT.owner), correct_text)


def _ends_within_character(text: str) -> bool:
    return text.endswith("\N{REPLACEMENT CHARACTER}")


def reserve_thread_for_short_texts(executor: Executor, threads: int) -> None:
    """Let long requests wait for each other, so that other requests always find a free thread.

    Replaces ``submit`` of the executor in which vLLM renders and tokenizes. With a single thread,
    other requests wait for at most one long request.
    """
    # The threads of this pool wait for the threads of the executor, which have a tokenizer each.
    long_executor = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="long-texts")

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not is_long.get():
            return submit_directly(function, *args, **kwargs)
        return long_executor.submit(lambda: submit_directly(function, *args, **kwargs).result())

    submit_directly: Callable[..., Future[Any]] = SUBMIT.replace(executor, submit)
