"""Words that may not be said: as many tokens as the model's runner has room for."""

from typing import Any

import vllm.envs
from vllm.sampling_params import SamplingParams

from worker.errors import InvalidInput

PARAMETER = "bad_words"


def check_bad_words(words: Any, tokenizer: Any, holder: str = "") -> None:
    """Refuse words of too many tokens in all: on a GPU the engine would die of them.

    Args:
        words: of any type: what is no list of texts vLLM refuses.
        tokenizer: the one of vLLM; without one (None), it ignores such words.
        holder: what stands before the parameter's name in a message, with a dot.

    Raises:
        InvalidInput: they have too many.
        Exception: vLLM's own, for a word that is empty.
    """
    if tokenizer is None or not isinstance(words, list) or set(map(type, words)) != {str}:
        return
    most = vllm.envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    if _surely_fit(words, most):
        return
    params = SamplingParams(bad_words=words)
    params.update_from_tokenizer(tokenizer)
    count = sum(map(len, params.bad_words_token_ids or ()))
    if count > most:
        message = f"{count:,} tokens in all, with and without a space in front; at most {most:,}"
        raise InvalidInput(f"{holder}{PARAMETER}: {message}", param=PARAMETER)


def _surely_fit(words: list[str], most: int) -> bool:
    """Return whether words fit whatever the tokenizer, so that they need not be counted.

    A character of ASCII is one token at most. Each word is there twice, once with a space in front,
    and a tokenizer may put another there.
    """
    return all(map(str.isascii, words)) and sum(2 * len(word) + 4 for word in words) <= most
