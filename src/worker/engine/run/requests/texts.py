"""How much text a request may hold, and a way for long texts on which nobody else waits.

Tokenizing takes a second for a few megabytes, in one of vLLM's few threads for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from worker.engine.seam.patches import SUBMIT
from worker.engine.seam.protocols import Client
from worker.errors import InvalidInput
from worker.limits.shapes import (
    BESIDE,
    CONVERSATION,
    FEW,
    MOST_ANSWERED,
    MOST_PER_TOKEN,
    Shape,
)

# Characters of a request from which on it goes the way of the long ones.
LONG = 64_000
# Prompts in one request, and tokens that it may hold instead of text, likewise.
MANY = 32
MANY_TOKENS = LONG // 4
# Whether what runs belongs to a long request, or to a list of them.
is_long: ContextVar[bool] = ContextVar("is_long", default=False)

# Special tokens, and characters that a cut may take from the first or last token.
SPARE = 8

# Kinds of a message's parts that are no text.
MEDIA = ("image", "audio", "video", "file", "input_image", "input_audio", "input_file")


def bounded(client: Client, body: Mapping[str, Any], shape: Shape) -> Mapping[str, Any]:
    """Return a body with the texts that are to be truncated cut to what can be kept of them.

    Notes for what is called next whether the request is long.

    Args:
        client: vLLM's; its model bounds the texts.
        body: of a request, or the raw path's prompt, messages and tools.
        shape: of the route.

    Raises:
        InvalidInput: a text is longer than what the context can hold.
    """
    size = sum(characters(body.get(key)) for key in {*shape.texts, *BESIDE})
    texts = [key for key in shape.texts if key not in CONVERSATION]
    lists = [value for key in texts if isinstance(value := body.get(key), list)]
    mark(long=size > LONG or any(map(_is_large, lists)))
    kept, context = body.get("truncate_prompt_tokens"), client.model_config.max_model_len
    if kept is None and shape.continues:
        # Token ids are refused before anything is done with each of them.
        prompt: Any = body.get("prompt")
        prompts: list[Any] = prompt if _is_of(prompt, list) else [prompt]
        longest = max((len(ids) for ids in prompts if _is_of(ids, int)), default=0)
        _refuse(longest, context, "prompt", context, "tokens")
    tokens = body.get("tokens") if shape.repeats else None
    tokenizer = client.renderer.tokenizer if size > LONG or tokens else None
    if tokenizer is None:
        return body
    per_token = tokenizer.max_chars_per_token
    # Characters, or tokens to be read, that can fit the context.
    most = min(context * per_token, max(FEW, context * MOST_PER_TOKEN))
    most = min(most, MOST_ANSWERED) if shape.repeats else most
    _refuse(len(tokens) if isinstance(tokens, list) else 0, most, "tokens", context, "tokens")
    _refuse(sum(characters(body.get(key)) for key in CONVERSATION), most, "messages", context)
    if type(kept) is int and shape.truncates and "messages" not in body:
        kept = most if kept < 0 else min(most, (kept + SPARE) * per_token)
        side = body.get("truncation_side") or tokenizer.truncation_side
        return {**body, **_cut(body, texts, slice(-kept, None) if side == "left" else slice(kept))}
    for key in texts:
        _refuse(max(_lengths(body.get(key)), default=0), most, key, context)
    return body


def _refuse(size: int, most: int, key: str, context: int, unit: str = "characters") -> None:
    if size > most:
        raise InvalidInput(
            f"{key}: {size:,} {unit}, and at most {most:,} are taken: the context of this "
            f"model has {context:,} tokens.",
            param=key,
        )


def mark(*, long: bool) -> None:
    """Note whether what this task does next is long; what was noted before it stays."""
    is_long.set(long or is_long.get())


def _is_of(value: Any, kind: type) -> bool:
    """Whether a value is a list that begins with an item of a kind."""
    return isinstance(value, list) and bool(value) and type(value[0]) is kind


def _is_large(items: list[Any]) -> bool:
    """Whether a list is of many prompts, or of many tokens."""
    if _is_of(items, int):
        return len(items) > MANY_TOKENS
    ids = sum(len(prompt) for prompt in items if _is_of(prompt, int))
    return len(items) > MANY or ids > MANY_TOKENS


def characters(value: Any) -> int:
    """Count the characters of all texts in a value, at any depth, but not those of media."""
    count, waiting = 0, [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                count += len(text)
            case dict() as found:
                if "role" in found or not str(found.get("type", "")).startswith(MEDIA):
                    waiting += found.values()
            case list() as found:
                waiting += [one for one in found if not isinstance(one, int)]
    return count


def _lengths(value: Any) -> Iterator[int]:
    """Yield the characters of each text of a list, or of the whole of anything else."""
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        yield from map(len, value)
    else:
        yield characters(value)


def _cut(body: Mapping[str, Any], keys: Iterable[str], kept: slice) -> dict[str, Any]:
    """Return the texts of a body, cut: vLLM would tokenize them whole, and drop the tokens then."""

    def cut(value: Any) -> Any:
        return value[kept] if isinstance(value, str) else value

    return {
        key: [*map(cut, value)] if isinstance(value := body[key], list) else cut(value)
        for key in keys
        if key in body
    }


def keep_a_thread_free(executor: Executor, threads: int) -> None:
    """Let the long requests wait for each other, so that the others always find a thread.

    Args:
        executor: in which vLLM renders and tokenizes; it stays the same object.
        threads: how many it has. With one, all wait for all.
    """
    if threads < 2:
        return
    # Its threads wait for the executor's, which have a tokenizer each.
    lane = ThreadPoolExecutor(threads - 1, thread_name_prefix="long-texts")

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not is_long.get():
            return at_once(function, *args, **kwargs)
        return lane.submit(lambda: at_once(function, *args, **kwargs).result())

    at_once: Callable[..., Future[Any]] = SUBMIT.replace(executor, submit)
