"""Checks of what a request holds that vLLM makes too late, or at too high a price."""

from collections.abc import Mapping
from typing import Any

import vllm.envs
from pydantic import ValidationError
from vllm.sampling_params import SamplingParams

from worker.engine.seam.locations import find
from worker.engine.seam.translation import wrong_shape
from worker.errors import InvalidInput
from worker.validation import invalid_param

# The list of the one route whose items have hundreds of alternatives.
INPUT = "input"
# Few enough to be checked by the server alone.
FEW = 16


def check_bad_words(words: Any, tokenizer: Any, holder: str = "") -> None:
    """Refuse words of too many tokens in all: on a GPU the engine would die of them.

    Args:
        words: of any type: what is no list of texts vLLM refuses.
        tokenizer: the one of vLLM; without one (None), it ignores such words.
        holder: the object that holds them; empty if it is a whole body.

    Raises:
        InvalidInput: they have too many.
        Exception: vLLM's own, for a word that is empty.
    """
    if tokenizer is None or not isinstance(words, list) or set(map(type, words)) != {str}:
        return
    most = vllm.envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    # Counting takes 40 us a word, and few words fit whatever the tokenizer: a character of ASCII is
    # one token at most. Each word is there twice, once with a space in front, and a tokenizer may
    # put another there.
    if all(map(str.isascii, words)) and sum(2 * len(word) + 4 for word in words) <= most:
        return
    params = SamplingParams(bad_words=words)
    params.update_from_tokenizer(tokenizer)
    count = sum(map(len, params.bad_words_token_ids or ()))
    if count > most:
        message = f"{count:,} tokens in all, with and without a space in front; at most {most:,}"
        raise invalid_param("bad_words", message, holder)


def check_items(body: Mapping[str, Any]) -> None:
    """Check the items of a long list as vLLM's server will, up to the first that is wrong.

    The server's own check keeps an error for each alternative of each wrong item: of 500 items of a
    response's input half a gigabyte, and two seconds in which nobody else is answered.

    Raises:
        InvalidInput: naming the field.
    """
    items = body.get(INPUT)
    if not isinstance(items, list) or len(items) <= FEW:
        return
    request = find("ResponsesRequest")
    for index, item in enumerate(items):
        try:
            # All of a request, since it also completes some items before it checks them.
            request.model_validate({INPUT: [item]})
        except ValidationError as invalid:
            place = f"{INPUT}.{index}"
            message = wrong_shape(invalid).message.replace(f"{INPUT}.0", place)
            raise InvalidInput(message, param=place) from None
