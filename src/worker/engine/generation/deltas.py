"""Takes vLLM's outputs apart into deltas."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from worker.engine import Delta
from worker.engine.generation.sampling import MOST_SPLIT, Plan

# What a tokenizer decodes the beginning of a character to.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"

# As vLLM's server tells what has no probability at all.
LEAST_LOGPROB = -9999.0


def deltas(
    output: Any, decode: Callable[[list[int]], str] | None, ids: bool = False
) -> Iterator[Delta]:
    """Yield what one ``RequestOutput`` brings.

    Args:
        output: vLLM merges the outputs of several engine steps into one if nobody was there to
            take them, so a delta of its can hold several tokens.
        decode: the tokenizer's, to yield one delta a token; None: one delta a choice.
        ids: whether to tell the tokens' ids.
    """
    prompt_ids = output.prompt_token_ids or ()
    told = output.prompt_logprobs
    # Each choice brings the prompt's once more.
    of_prompt = {0: [None, *_positions(prompt_ids[1:], told[1:])]} if told else {}
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


def best(output: Any, planned: Plan, tokenizer: Any, ends: set[int]) -> Any:
    """Keep the best choices of a ``RequestOutput`` that holds all of them, and number them.

    Args:
        output: its choices are changed.
        planned: how they came about.
        tokenizer: the model's; a beam search has one.
        ends: tokens that end a text; vLLM's beam search heeds only one of them.
    """
    choices = list(output.outputs)
    if not planned.beam_width:  # a beam search has ranked them itself
        choices.sort(key=lambda choice: choice.cumulative_logprob, reverse=True)
    output.outputs = choices[: planned.n]
    special = planned.params.skip_special_tokens
    for index, choice in enumerate(output.outputs):
        choice.index = index
        if planned.beam_width and not planned.params.ignore_eos:
            _cut(choice, ends, partial(tokenizer.decode, skip_special_tokens=special))
        if not planned.tells_logprobs:
            choice.logprobs = None
        elif planned.beam_width:
            choice.logprobs = [
                _likeliest(candidates, chosen, planned.params.logprobs, tokenizer.decode)
                for chosen, candidates in zip(choice.token_ids, choice.logprobs, strict=False)
            ]
    return output


def _cut(choice: Any, ends: set[int], decode: Callable[[list[int]], str]) -> None:
    """End a choice where sampling would have ended it."""
    ids = list(choice.token_ids)
    place = next((place for place, id_ in enumerate(ids) if id_ in ends), None)
    if place is not None:
        choice.token_ids, choice.text = ids[: place + 1], decode(ids[:place])
        choice.finish_reason, choice.stop_reason = "stop", ids[place]


def _likeliest(
    candidates: dict[int, Any], chosen: int, count: int, decode: Callable[[list[int]], str]
) -> dict[int, Any]:
    """Keep of what a beam search has looked at what was asked for, and the chosen token."""
    kept = {
        id_: logprob
        for id_, logprob in candidates.items()
        if id_ == chosen or count < 0 or logprob.rank <= count
    }
    for id_, logprob in kept.items():
        logprob.decoded_token = decode([id_])
    return kept


def _parts(
    text: str, ids: list[int], decode: Callable[[list[int]], str] | None
) -> Iterator[tuple[str, slice]]:
    """Split a text into the shares of its tokens; together they are the text, whatever happens.

    The text of a first token can belong to a character that began before ``ids``: then some text
    is counted to a neighbour, but none is lost and no character is split.
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
    """Say what was chosen at each position, and what else was likely, most likely first."""
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


def _candidate(id_: int, logprob: Any) -> dict[str, Any]:
    # What structured output rules out is minus infinity, which JSON does not know.
    value = max(logprob.logprob, LEAST_LOGPROB)
    return {"token": logprob.decoded_token, "id": id_, "logprob": value}
