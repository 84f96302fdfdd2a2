"""vLLM's outputs: ranked, and taken apart into deltas."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from worker.engine import Delta
from worker.engine.run.generation.sampling import MOST_SPLIT, Plan
from worker.engine.seam.protocols import CompletionOutput, Logprob, RequestOutput

# The text of an incomplete character.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"

# How vLLM's server writes a probability of zero.
LEAST_LOGPROB = -9999.0


def deltas(
    output: RequestOutput, decode: Callable[[list[int]], str] | None, ids: bool = False
) -> Iterator[Delta]:
    """Yield the deltas of one output.

    Args:
        output: can hold several tokens of a choice even in a stream: vLLM merges the outputs of
            engine steps that nobody has taken yet.
        decode: the tokenizer's: one delta a token. With None, one delta a choice.
        ids: whether deltas hold the tokens' ids.
    """
    prompt_ids = output.prompt_token_ids or []
    of_prompt: dict[int, list[dict[str, Any] | None]] = {}
    # Every choice repeats those of the prompt: the first delta of choice 0 gets them.
    if output.prompt_logprobs:
        of_prompt[0] = [None, *_positions(prompt_ids[1:], output.prompt_logprobs[1:])]
    for choice in output.outputs:
        token_ids = list(choice.token_ids)
        positions = _positions(token_ids, choice.logprobs or ())
        for text, tokens in _parts(choice.text, token_ids, decode):
            ended = tokens.stop == len(token_ids)
            yield Delta(
                index=choice.index,
                text=text,
                tokens=tokens.stop - tokens.start,
                prompt_tokens=len(prompt_ids),
                finish_reason=choice.finish_reason if ended else None,
                stop_reason=choice.stop_reason if ended else None,
                logprobs=positions[tokens] or None,
                token_ids=token_ids[tokens] if ids else None,
                prompt_logprobs=of_prompt.pop(choice.index, None),
            )


def keep_best(output: RequestOutput, planned: Plan, tokenizer: Any, end_tokens: set[int]) -> None:
    """Drop all but the best choices of a complete answer, and renumber them, in place.

    vLLM's beam search, which alone needs the tokenizer, knows only one of the tokens that end a
    text.
    """
    choices, sampling = list(output.outputs), planned.sampling
    beams = sampling.use_beam_search
    # Ranking needs log probabilities even if the caller did not ask for them.
    asked = sampling.vllm.keys() & {"logprobs", "logprob_token_ids"}
    if not beams:  # a beam search has ranked them itself
        choices.sort(key=lambda choice: choice.cumulative_logprob or 0.0, reverse=True)
    output.outputs = choices[: sampling.n]
    special = planned.params.skip_special_tokens
    for index, choice in enumerate(output.outputs):
        choice.index = index
        if beams and not planned.params.ignore_eos:
            _cut(choice, end_tokens, partial(tokenizer.decode, skip_special_tokens=special))
        if not asked:
            choice.logprobs = None
        elif beams:
            choice.logprobs = [
                _likeliest(candidates, chosen, planned.params.logprobs, tokenizer.decode)
                for chosen, candidates in zip(choice.token_ids, choice.logprobs or (), strict=False)
            ]


def _cut(choice: CompletionOutput, ends: set[int], decode: Callable[[list[int]], str]) -> None:
    """End a choice where sampling would have ended it."""
    ids = list(choice.token_ids)
    place = next((place for place, id_ in enumerate(ids) if id_ in ends), None)
    if place is not None:
        choice.token_ids, choice.text = ids[: place + 1], decode(ids[:place])
        choice.finish_reason, choice.stop_reason = "stop", ids[place]


def _likeliest(
    candidates: Mapping[int, Logprob], chosen: int, count: int, decode: Callable[[list[int]], str]
) -> dict[int, Logprob]:
    """Keep the chosen token and the ``count`` best candidates: beam search reports more."""
    kept = {
        id_: logprob
        for id_, logprob in candidates.items()
        if id_ == chosen or count < 0 or (logprob.rank or 0) <= count
    }
    for id_, logprob in kept.items():
        logprob.decoded_token = decode([id_])
    return kept


def _parts(
    text: str, ids: list[int], decode: Callable[[list[int]], str] | None
) -> Iterator[tuple[str, slice]]:
    """Split a text among its tokens; the parts joined are always the whole text.

    The first token can end a character that began before ``ids``. Then some text goes to the next
    token, but none is lost and no character is split.
    """
    start = 0
    if decode is not None and len(ids) <= MOST_SPLIT:
        for count in range(1, len(ids)):
            settled = len(decode(ids[:count]).rstrip(UNFINISHED))
            end = max(start, min(settled, len(text)))
            yield text[start:end], slice(count - 1, count)
            start = end
        yield text[start:], slice(max(len(ids) - 1, 0), len(ids))
    else:
        yield text, slice(0, len(ids))


def _positions(ids: Sequence[int], positions: Iterable[Any]) -> list[dict[str, Any]]:
    """Render the chosen token of each position, and all candidates, the likeliest first."""
    return [
        {
            **_candidate(chosen, candidates[chosen]),
            "top": [
                _candidate(id_, logprob)
                for id_, logprob in sorted(candidates.items(), key=lambda item: item[1].rank or 0)
            ],
        }
        for chosen, candidates in zip(ids, positions, strict=False)
    ]


def _candidate(id_: int, logprob: Logprob) -> dict[str, Any]:
    # Tokens that structured output excludes have minus infinity, which JSON does not have, and
    # extreme sampling parameters make NaN, which is greater than nothing: so the bound comes first.
    value = max(LEAST_LOGPROB, logprob.logprob)
    return {"token": logprob.decoded_token, "id": id_, "logprob": value}
