"""Takes vLLM's outputs apart into deltas."""

from collections.abc import Callable, Iterator
from typing import Any

from worker.engine import Delta

# What a tokenizer decodes the beginning of a character to.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def deltas(output: Any, decode: Callable[[list[int]], str] | None) -> Iterator[Delta]:
    """Yield what one ``RequestOutput`` brings.

    Args:
        output: vLLM merges the outputs of several engine steps into one if nobody was there to
            take them, so a delta of its can hold several tokens.
        decode: the tokenizer's, to yield one delta a token; None: one delta a choice.
    """
    for choice in output.outputs:
        logprobs = _logprobs(list(choice.token_ids), choice.logprobs)
        for text, tokens in _parts(choice.text, list(choice.token_ids), decode):
            ended = tokens.stop == len(choice.token_ids)
            yield Delta(
                index=choice.index,
                text=text,
                tokens=tokens.stop - tokens.start,
                prompt_tokens=len(output.prompt_token_ids or ()),
                finish_reason=choice.finish_reason if ended else None,
                stop_reason=choice.stop_reason if ended else None,
                logprobs=logprobs[tokens] if logprobs else None,
            )


def _parts(
    text: str, ids: list[int], decode: Callable[[list[int]], str] | None
) -> Iterator[tuple[str, slice]]:
    """Split a text into the shares of its tokens; together they are the text, whatever happens.

    The text of a first token can belong to a character that began before ``ids``: then some text
    is counted to a neighbour, but none is lost and no character is split.
    """
    start = 0
    if decode is not None:
        for count in range(1, len(ids)):
            settled = len(decode(ids[:count]).rstrip(UNFINISHED))
            end = max(start, min(settled, len(text)))
            yield text[start:end], slice(count - 1, count)
            start = end
    yield text[start:], slice(max(len(ids) - 1, 0) if decode else 0, len(ids))


def _logprobs(ids: list[int], positions: Any) -> list[dict[str, Any]] | None:
    """Say what was chosen at each position, and what else was likely, most likely first."""
    if not positions:
        return None
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
    return {"token": logprob.decoded_token, "id": id_, "logprob": logprob.logprob}
