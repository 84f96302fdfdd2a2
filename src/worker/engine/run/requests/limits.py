"""Limits of requests that need vLLM's objects: its tokenizer and its own checks."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import vllm.envs
from pydantic import ValidationError
from vllm.sampling_params import SamplingParams

from worker.engine.run.requests.long_requests import mark_if_long
from worker.engine.seam.body_errors import invalid_body_error
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import Client, Tokenizer
from worker.limits import parameters, texts
from worker.limits.shapes import BodyShape


def limit_texts(client: Client, body: Mapping[str, Any], shape: BodyShape) -> Mapping[str, Any]:
    """Return a body with texts within the limits, and mark the current task if they are long."""
    context, tokenizer = client.model_config.max_model_len, client.renderer.tokenizer
    limited = texts.limit_texts(body, shape, context, tokenizer)
    mark_if_long(long=limited.is_long)
    return limited.body


def check_bad_words(words: Any, tokenizer: Tokenizer | None, holder: str = "") -> None:
    """Refuse bad words with too many tokens; vLLM ignores the words without a tokenizer.

    vLLM's own exception refuses an empty word.
    """
    if tokenizer is not None:
        limit = vllm.envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
        parameters.check_bad_words(words, partial(_count_tokens, tokenizer), limit, holder)


def _count_tokens(tokenizer: Tokenizer, words: list[str]) -> int:
    params = SamplingParams(bad_words=words)
    params.update_from_tokenizer(tokenizer)
    return sum(map(len, params.bad_words_token_ids or ()))


def validate_responses_body(body: Mapping[str, Any]) -> None:
    """Validate a body for ``/v1/responses`` as vLLM's server would.

    Raises:
        InvalidInput: If the body is invalid; the error names the field.
    """
    try:
        import_from_vllm("ResponsesRequest").model_validate(body)
    except ValidationError as invalid:
        raise invalid_body_error(invalid) from None
