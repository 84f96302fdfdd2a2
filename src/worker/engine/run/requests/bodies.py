"""Checks of requests that vLLM itself does too late, or at too high a cost."""

from collections.abc import Mapping
from typing import Any

import vllm.envs
from pydantic import ValidationError
from vllm.sampling_params import SamplingParams

from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.translation import invalid_body_error
from worker.errors import InvalidInput
from worker.validation import param_error

# Key of the input items in a body for ``/v1/responses``. No other list has items that can be of
# hundreds of types.
INPUT = "input"
# Maximum number of items that are left to the validation of vLLM's server.
MAX_UNCHECKED_ITEMS = 16


def check_bad_words(words: Any, tokenizer: Any, holder: str = "") -> None:
    """Refuse bad words with too many tokens in total: on a GPU the engine would die.

    vLLM itself refuses values that aren't lists of strings, and ignores words without a tokenizer.

    Raises:
        InvalidInput: If the words have too many tokens.
        Exception: vLLM's own, for an empty word.
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
    count = sum(map(len, params.bad_words_token_ids or ()))
    if count > limit:
        message = f"{count:,} tokens in all, with and without a space in front; at most {limit:,}"
        raise param_error("bad_words", message, holder)


def check_responses_input_items(body: Mapping[str, Any]) -> None:
    """Check the items of a long ``input`` as vLLM's server would, up to the first wrong item.

    The server's own check keeps an error for each possible type of each wrong item. For 500 items
    of ``/v1/responses``, this takes half a gigabyte, and blocks other requests for two seconds.

    Raises:
        InvalidInput: If an item is wrong; the error names the field.
    """
    items = body.get(INPUT)
    if not isinstance(items, list) or len(items) <= MAX_UNCHECKED_ITEMS:
        return
    request_class = import_from_vllm("ResponsesRequest")
    for index, item in enumerate(items):
        try:
            # Validate a whole request: its validators complete some items before they check them.
            request_class.model_validate({INPUT: [item]})
        except ValidationError as invalid:
            place = f"{INPUT}.{index}"
            message = invalid_body_error(invalid).message.replace(f"{INPUT}.0", place)
            raise InvalidInput(message, param=place) from None
