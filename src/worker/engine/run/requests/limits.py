"""Limits of requests that need vLLM's objects: its tokenizer and its own checks."""

from collections.abc import Mapping
from typing import Any

import vllm.envs
from pydantic import ValidationError
from vllm.sampling_params import SamplingParams

from worker.engine.run.requests.long_requests import mark_if_long
from worker.engine.seam.body_errors import invalid_body_error
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import Client, Tokenizer
from worker.errors import InvalidInput, field_error
from worker.limits import texts
from worker.limits.inputs import BodyShape

# Maximum number of items that are left to the validation of vLLM's server.
MAX_UNCHECKED_ITEMS = 16


def limit_texts(client: Client, body: Mapping[str, Any], shape: BodyShape) -> Mapping[str, Any]:
    """Return a body with texts within the limits, and mark the current task if they are long."""
    context, tokenizer = client.model_config.max_model_len, client.renderer.tokenizer
    limited, is_long = texts.limit_texts(body, shape, context, tokenizer)
    mark_if_long(long=is_long)
    return limited


def check_bad_words(words: Any, tokenizer: Tokenizer | None, holder: str = "") -> None:
    """Refuse bad words with too many tokens in total: on a GPU the engine would die.

    vLLM itself refuses values that aren't lists of strings, and ignores words without a tokenizer.
    ``holder`` is the name of the object with the words, for messages; empty for a body.
    """
    if tokenizer is None or not isinstance(words, list) or set(map(type, words)) != {str}:
        return
    limit = vllm.envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    # Counting takes 40 us a word, and a few words fit with any tokenizer: a character of ASCII is
    # one token at most. vLLM encodes each word twice, once with a space in front, and a tokenizer
    # may add another space.
    if all(map(str.isascii, words)) and sum(2 * len(word) + 4 for word in words) <= limit:
        return
    params = SamplingParams(bad_words=words)
    params.update_from_tokenizer(tokenizer)
    if (count := sum(map(len, params.bad_words_token_ids or ()))) > limit:
        message = f"{count:,} tokens in all, with and without a space in front; at most {limit:,}"
        raise field_error("bad_words", message, holder)


def check_items(body: Mapping[str, Any]) -> None:
    """Check the items of a long ``input`` of ``/v1/responses`` up to the first wrong item.

    vLLM's own check stores an error for each possible type of each wrong item. For 500 items, this
    takes half a gigabyte, and blocks other requests for two seconds. No other list of a body has
    items that can be of hundreds of types.
    """
    items = body.get("input")
    if not isinstance(items, list) or len(items) <= MAX_UNCHECKED_ITEMS:
        return
    request = import_from_vllm("ResponsesRequest")
    for index, item in enumerate(items):
        try:
            # Validate a whole request: its validators complete some items before they check them.
            request.model_validate({"input": [item]})
        except ValidationError as invalid:
            place = f"input.{index}"
            message = invalid_body_error(invalid).message.replace("input.0", place)
            raise InvalidInput(message, param=place) from None
