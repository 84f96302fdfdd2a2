"""Conversion of vLLM's outputs to deltas, and selection of the best choices."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from worker.engine import Delta
from worker.engine.run.generation.sampling import MAX_SPLIT_TOKENS, SamplingPlan
from worker.engine.seam.protocols import Logprob, RequestOutput

# Text that a tokenizer returns for the bytes of an incomplete character.
INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"

# The log probability that vLLM's server writes for a probability of zero.
MIN_LOGPROB = -9999.0

Decode = Callable[[list[int]], str]


def split_into_deltas(
    output: RequestOutput, decode: Decode | None, include_ids: bool = False
) -> Iterator[Delta]:
    """Yield the deltas of one output of the engine.

    Even in a stream, an output can have several tokens of a choice, since vLLM merges the outputs
    of several steps until they are consumed. With ``decode``, each token gets its own delta;
    without it, or with more than ``MAX_SPLIT_TOKENS`` tokens, a choice gets one delta.
    """
    prompt_ids = output.prompt_token_ids or []
    prompt_logprobs: dict[int, list[dict[str, Any] | None]] = {}
    # The prompt's log probabilities are the same for all choices: only the first delta of choice 0
    # gets them.
    if output.prompt_logprobs:
        prompt_logprobs[0] = [None, *_render_logprobs(prompt_ids[1:], output.prompt_logprobs[1:])]
    for choice in output.outputs:
        token_ids = list(choice.token_ids)
        positions = _render_logprobs(token_ids, choice.logprobs or ())
        for text, tokens in _split_text_by_token(choice.text, token_ids, decode):
            is_last = tokens.stop == len(token_ids)
            yield Delta(
                index=choice.index,
                text=text,
                tokens=tokens.stop - tokens.start,
                prompt_tokens=len(prompt_ids),
                finish_reason=choice.finish_reason if is_last else None,
                stop_reason=choice.stop_reason if is_last else None,
                logprobs=positions[tokens] or None,
                token_ids=token_ids[tokens] if include_ids else None,
                prompt_logprobs=prompt_logprobs.pop(choice.index, None),
            )


def keep_best_choices(
    output: RequestOutput, plan: SamplingPlan, tokenizer: Any, end_ids: set[int]
) -> None:
    """Drop all but the best choices of a complete answer, and renumber them, in place.

    vLLM's beam search stops at only one of the model's end tokens, so its choices are truncated
    at the first of ``end_ids``. Log probabilities that the caller did not request are removed. Only
    beam search needs the tokenizer.
    """
    choices, sampling = list(output.outputs), plan.sampling
    is_beam_search = sampling.use_beam_search
    # Ranking needs log probabilities even if the caller did not request them.
    wants_logprobs = sampling.vllm_params.keys() & {"logprobs", "logprob_token_ids"}
    if not is_beam_search:  # beam search has already ranked the choices
        choices.sort(key=lambda choice: choice.cumulative_logprob or 0.0, reverse=True)
    output.outputs = choices[: sampling.n]
    for index, choice in enumerate(output.outputs):
        choice.index = index
        if is_beam_search and not plan.params.ignore_eos:
            ids = list(choice.token_ids)
            end = next((position for position, id_ in enumerate(ids) if id_ in end_ids), None)
            if end is not None:  # sampling would have stopped here
                skip = plan.params.skip_special_tokens
                choice.text = tokenizer.decode(ids[:end], skip_special_tokens=skip)
                choice.token_ids = ids[: end + 1]
                choice.finish_reason, choice.stop_reason = "stop", ids[end]
        if not wants_logprobs:
            choice.logprobs = None
        elif is_beam_search:
            # Beam search reports more candidates than the caller requested.
            choice.logprobs = [
                _top_candidates(candidates, chosen, plan.params.logprobs, tokenizer.decode)
                for chosen, candidates in zip(choice.token_ids, choice.logprobs or (), strict=False)
            ]


def _top_candidates(
    candidates: Mapping[int, Logprob], chosen: int, count: int, decode: Decode
) -> dict[int, Logprob]:
    """Return the chosen token and the ``count`` best candidates (all if negative), all decoded."""
    top = {
        id_: logprob
        for id_, logprob in candidates.items()
        if id_ == chosen or count < 0 or (logprob.rank or 0) <= count
    }
    for id_, logprob in top.items():
        logprob.decoded_token = decode([id_])
    return top


def _split_text_by_token(
    text: str, ids: list[int], decode: Decode | None
) -> Iterator[tuple[str, slice]]:
    """Split a text among its tokens; yield each part of the text with the slice of its tokens.

    Without ``decode``, or with more than ``MAX_SPLIT_TOKENS`` tokens, the text is one part. The
    joined parts are the whole text. If the first token completes a character that began before
    ``ids``, some text moves to the next token, but no character is split.
    """
    start = 0
    if decode is not None and len(ids) <= MAX_SPLIT_TOKENS:
        for count in range(1, len(ids)):
            complete_length = len(decode(ids[:count]).rstrip(INCOMPLETE_CHARACTER))
            end = max(start, min(complete_length, len(text)))
            yield text[start:end], slice(count - 1, count)
            start = end
        yield text[start:], slice(max(len(ids) - 1, 0), len(ids))
    else:
        yield text, slice(0, len(ids))


def _render_logprobs(ids: Sequence[int], positions: Iterable[Any]) -> list[dict[str, Any]]:
    """Render the chosen token of each position, and all candidates, the likeliest first."""
    return [
        {
            **_render_candidate(chosen, candidates[chosen]),
            "top": [
                _render_candidate(id_, logprob)
                for id_, logprob in sorted(candidates.items(), key=lambda item: item[1].rank or 0)
            ],
        }
        for chosen, candidates in zip(ids, positions, strict=False)
    ]


def _render_candidate(id_: int, logprob: Logprob) -> dict[str, Any]:
    # Tokens that structured output excludes have minus infinity, which JSON does not have. Extreme
    # sampling parameters make NaN. ``max`` returns its first argument if the second is NaN.
    value = max(MIN_LOGPROB, logprob.logprob)
    return {"token": logprob.decoded_token, "id": id_, "logprob": value}
