"""Limits for the texts of a request, which depend on the model's context and tokenizer.

Tokenizing takes a second for a few megabytes, in one of vLLM's few threads for it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from worker.errors import InvalidInput
from worker.limits import work
from worker.limits.inputs import CONVERSATION_KEYS, TEMPLATE_KEYS, BodyShape

# Characters in a request above which the request counts as long.
LONG_CHARACTERS = 64_000
# Number of prompts, and number of token ids, above which a request counts as long.
MANY_PROMPTS = 32
MANY_TOKENS = LONG_CHARACTERS // 4

# Characters per token that limit the length of a text. Only runs of spaces or dashes are longer
# tokens. Texts of up to ``EXEMPT_CHARACTERS`` are exempt, since tokenizing them takes no time.
MAX_CHARACTERS_PER_TOKEN = 32
EXEMPT_CHARACTERS = 1_000_000
# Maximum characters to tokenize, or tokens to detokenize, if the response contains all of them.
MAX_ECHO_SIZE = 1_000_000

# Tokens to retain in addition when a text is truncated: for special tokens, and for characters that
# truncation may remove from the first or last token.
SPARE_TOKENS = 8

# Prefixes of the types of message parts that are not text.
MEDIA_TYPES = ("image", "audio", "video", "file", "input_image", "input_audio", "input_file")


class TextTokenizer(Protocol):
    """The attributes of vLLM's tokenizer that limits depend on."""

    max_chars_per_token: int
    truncation_side: str


def limit_texts(
    body: Mapping[str, Any], shape: BodyShape, context: int, tokenizer: TextTokenizer | None
) -> tuple[Mapping[str, Any], bool]:
    """Check the texts of a body or of a raw job, and truncate them where the request allows it.

    Return a body, and whether the request counts as long. With ``truncate_prompt_tokens``, the
    texts of the body may be cut to the characters that can remain after vLLM's own truncation.
    ``context`` is in tokens.
    """
    size = sum(count_characters(body.get(key)) for key in {*shape.text_keys, *TEMPLATE_KEYS})
    keys = [key for key in shape.text_keys if key not in CONVERSATION_KEYS]
    lists = [value for key in keys if isinstance(value := body.get(key), list)]
    is_large = size > LONG_CHARACTERS or any(map(_has_many_prompts_or_ids, lists))
    is_long = is_large or work.needs_list_queue(body)

    truncation = body.get("truncate_prompt_tokens")
    if truncation is None and shape.accepts_token_ids:
        # Refuse too many token ids before any code processes each of them.
        prompt: Any = body.get("prompt")
        prompts: list[Any] = prompt if _is_list_starting_with(prompt, list) else [prompt]
        longest = max((len(ids) for ids in prompts if _is_list_starting_with(ids, int)), default=0)
        _check_size(longest, context, "prompt", context, "tokens")
    tokens = body.get("tokens") if shape.echoes_input else None
    if tokenizer is None or (size <= LONG_CHARACTERS and not tokens):
        return body, is_long

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
        # vLLM would first tokenize all of each text.
        truncated = dict(body)
        for key in keys:
            match body.get(key):
                case str() as text:
                    truncated[key] = text[span]
                case list() as items:
                    truncated[key] = [one[span] if isinstance(one, str) else one for one in items]
        return truncated, is_long
    for key in keys:
        whole: Any = body.get(key)
        is_list = isinstance(whole, list) and all(isinstance(text, str) for text in whole)
        longest = max(map(count_characters, whole if is_list else [whole]), default=0)
        _check_size(longest, limit, key, context)
    return body, is_long


def _check_size(size: int, limit: int, key: str, context: int, unit: str = "characters") -> None:
    if size > limit:
        raise InvalidInput(
            f"{key}: {size:,} {unit}, and at most {limit:,} are accepted: the context of this "
            f"model has {context:,} tokens.",
            param=key,
        )


def _is_list_starting_with(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and type(value[0]) is kind


def _has_many_prompts_or_ids(items: list[Any]) -> bool:
    if _is_list_starting_with(items, int):
        return len(items) > MANY_TOKENS
    ids = sum(len(prompt) for prompt in items if _is_list_starting_with(prompt, int))
    return len(items) > MANY_PROMPTS or ids > MANY_TOKENS


def count_characters(value: Any) -> int:
    """Count the characters of all keys and strings in a value, at any depth, except in media.

    Each item counts as one more, since a template renders it with a separator.
    """
    count, pending = 0, [value]
    while pending:
        match pending.pop():
            case str() as text:
                count += len(text)
            case dict() as fields:
                if "role" in fields or not str(fields.get("type", "")).startswith(MEDIA_TYPES):
                    count += len(fields) + sum(map(len, fields))
                    pending += fields.values()
            case list() as items:
                count += len(items)
                pending += [item for item in items if not isinstance(item, int)]
    return count
