"""Limits for the text in a request, a separate thread pool for long texts, and texts of tokens.

Tokenizing takes a second for a few megabytes, in one of vLLM's few threads for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from pkgutil import resolve_name
from typing import Any
from weakref import WeakKeyDictionary

from worker.engine.seam.patches import INCOMPLETE_TEXT, SUBMIT, TOKEN_TEXTS
from worker.engine.seam.protocols import Client
from worker.errors import InvalidInput
from worker.limits import work
from worker.limits.shapes import (
    CONVERSATION_KEYS,
    EXEMPT_CHARACTERS,
    MAX_CHARACTERS_PER_TOKEN,
    MAX_ECHO_SIZE,
    TEMPLATE_KEYS,
    BodyShape,
)

# Characters in a request above which the request counts as long.
LONG_CHARACTERS = 64_000
# Number of prompts, and number of token ids, above which a request counts as long.
MANY_PROMPTS = 32
MANY_TOKENS = LONG_CHARACTERS // 4
# Whether the current task belongs to a long request, or to a list of requests.
is_long: ContextVar[bool] = ContextVar("is_long", default=False)

# Tokens to retain in addition when a text is truncated: for special tokens, and for characters that
# truncation may remove from the first or last token.
SPARE_TOKENS = 8

# Prefixes of the types of message parts that are not text.
MEDIA_TYPES = ("image", "audio", "video", "file", "input_image", "input_audio", "input_file")


def limit_texts(client: Client, body: Mapping[str, Any], shape: BodyShape) -> Mapping[str, Any]:
    """Check the texts of a body or of a raw job, and truncate them where the request allows it.

    Also marks the current task if the request is long (see ``mark_if_long``). With
    ``truncate_prompt_tokens``, the texts in the returned body may be cut to the characters that can
    remain after vLLM's own truncation.

    Raises:
        InvalidInput: If a text or a list of token ids is too large for the context or one response.
    """
    size = sum(count_characters(body.get(key)) for key in {*shape.text_keys, *TEMPLATE_KEYS})
    keys = [key for key in shape.text_keys if key not in CONVERSATION_KEYS]
    lists = [value for key in keys if isinstance(value := body.get(key), list)]
    is_large = size > LONG_CHARACTERS or any(map(_has_many_prompts_or_ids, lists))
    mark_if_long(long=is_large or work.needs_list_queue(body))
    truncation, context = body.get("truncate_prompt_tokens"), client.model_config.max_model_len
    if truncation is None and shape.accepts_token_ids:
        # Refuse too many token ids before any code processes each of them.
        prompt: Any = body.get("prompt")
        prompts: list[Any] = prompt if _is_list_starting_with(prompt, list) else [prompt]
        longest = max((len(ids) for ids in prompts if _is_list_starting_with(ids, int)), default=0)
        _check_size(longest, context, "prompt", context, "tokens")
    tokens = body.get("tokens") if shape.echoes_input else None
    tokenizer = client.renderer.tokenizer if size > LONG_CHARACTERS or tokens else None
    if tokenizer is None:
        return body
    per_token = tokenizer.max_chars_per_token
    # Maximum characters, or tokens to detokenize, that can fit the context.
    limit = min(context * per_token, max(EXEMPT_CHARACTERS, context * MAX_CHARACTERS_PER_TOKEN))
    limit = min(limit, MAX_ECHO_SIZE) if shape.echoes_input else limit
    _check_size(len(tokens) if isinstance(tokens, list) else 0, limit, "tokens", context, "tokens")
    conversation_size = sum(count_characters(body.get(key)) for key in CONVERSATION_KEYS)
    _check_size(conversation_size, limit, "messages", context)
    if type(truncation) is int and shape.can_truncate and "messages" not in body:
        length = limit if truncation < 0 else min(limit, (truncation + SPARE_TOKENS) * per_token)
        side = body.get("truncation_side") or tokenizer.truncation_side
        span = slice(-length, None) if side == "left" else slice(length)
        return {**body, **_truncate_texts(body, keys, span)}
    for key in keys:
        _check_size(max(_character_counts(body.get(key)), default=0), limit, key, context)
    return body


def _check_size(size: int, limit: int, key: str, context: int, unit: str = "characters") -> None:
    if size > limit:
        raise InvalidInput(
            f"{key}: {size:,} {unit}, and at most {limit:,} are accepted: the context of this "
            f"model has {context:,} tokens.",
            param=key,
        )


def mark_if_long(*, long: bool) -> None:
    """Mark the current task as part of a long request if ``long``; a marked task stays marked."""
    is_long.set(long or is_long.get())


def _is_list_starting_with(value: Any, kind: type) -> bool:
    """Return whether a value is a list whose first item has this type."""
    return isinstance(value, list) and bool(value) and type(value[0]) is kind


def _has_many_prompts_or_ids(items: list[Any]) -> bool:
    """Return whether a list has many prompts, or many token ids."""
    if _is_list_starting_with(items, int):
        return len(items) > MANY_TOKENS
    ids = sum(len(prompt) for prompt in items if _is_list_starting_with(prompt, int))
    return len(items) > MANY_PROMPTS or ids > MANY_TOKENS


def count_characters(value: Any) -> int:
    """Count the characters of all strings in a value, at any depth, except in media."""
    count, pending = 0, [value]
    while pending:
        match pending.pop():
            case str() as text:
                count += len(text)
            case dict() as fields:
                if "role" in fields or not str(fields.get("type", "")).startswith(MEDIA_TYPES):
                    pending += fields.values()
            case list() as items:
                pending += [item for item in items if not isinstance(item, int)]
    return count


def _character_counts(value: Any) -> Iterator[int]:
    """Yield the character count of each string in a list, or the total of any other value."""
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        yield from map(len, value)
    else:
        yield count_characters(value)


def _truncate_texts(body: Mapping[str, Any], keys: Iterable[str], span: slice) -> dict[str, Any]:
    """Return a body's truncated texts by key; vLLM would first tokenize all of each text."""

    def truncate_text(value: Any) -> Any:
        return value[span] if isinstance(value, str) else value

    return {
        key: [*map(truncate_text, value)]
        if isinstance(value := body[key], list)
        else truncate_text(value)
        for key in keys
        if key in body
    }


@cache
def remember_token_texts() -> None:
    """Let vLLM decode each token with a log probability once, instead of in each step.

    The texts of a model's tokens take at most some megabytes.
    """
    decode: Callable[[Any, list[int]], list[str]] = TOKEN_TEXTS.original
    correct: Callable[[Any, int, list[int]], str] = INCOMPLETE_TEXT.original
    texts_by_tokenizer: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()

    def token_texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
        texts = texts_by_tokenizer.setdefault(tokenizer, {})
        if unknown := [*{token for token in token_ids if token not in texts}]:
            texts.update(zip(unknown, decode(tokenizer, unknown), strict=True))
        return [texts[token] for token in token_ids]

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

    Replaces ``submit`` of the executor in which vLLM renders and tokenizes. Does nothing with a
    single thread, for which all requests wait.
    """
    if threads < 2:
        return
    # The threads of this pool wait for the threads of the executor, which have a tokenizer each.
    long_executor = ThreadPoolExecutor(threads - 1, thread_name_prefix="long-texts")

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not is_long.get():
            return submit_directly(function, *args, **kwargs)
        return long_executor.submit(lambda: submit_directly(function, *args, **kwargs).result())

    submit_directly: Callable[..., Future[Any]] = SUBMIT.replace(executor, submit)
