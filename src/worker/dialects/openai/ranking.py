"""``best_of``: the likeliest of more choices than are returned."""

from dataclasses import dataclass
from itertools import count
from typing import Any, Self

from worker.job.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Ranking:
    """``width`` choices a prompt, of which ``n`` are kept.

    Beams are ``ranked`` by vLLM; sampled choices are ranked here by the sum of their tokens' log
    probabilities, which are returned only if the caller asked for them.
    """

    n: int
    width: int
    ranked: bool
    shows_logprobs: bool

    @classmethod
    def begin(cls, body: dict[str, Any], sampling: Sampling) -> Self:
        """Change a body to ask vLLM's server for all choices, and for what ranks them."""
        body["n"] = sampling.width
        logprobs = body.get("logprobs")
        shows = logprobs is not None and logprobs is not False
        if not sampling.use_beam_search and not shows:
            # A switch in chat completions, a count in completions.
            body["logprobs"] = True if "messages" in body else 0
        return cls(sampling.n, sampling.width, sampling.use_beam_search, shows)

    def best(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer with the best choices of every prompt only, numbered in order."""
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        kept: list[dict[str, Any]] = []
        for first in range(0, len(choices), self.width):
            group = choices[first : first + self.width]
            if not self.ranked:
                group.sort(key=_likelihood, reverse=True)
            kept += group[: self.n]
        if not self.shows_logprobs:
            kept = [{**choice, "logprobs": None} for choice in kept]
        numbers = count()
        return {**answer, "choices": [{**choice, "index": next(numbers)} for choice in kept]}


def _likelihood(choice: dict[str, Any]) -> float:
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        values = [token["logprob"] for token in logprobs["content"] or []]
    else:
        # The first token of an echoed prompt has none, in every choice.
        values = [value for value in logprobs["token_logprobs"] if value is not None]
    return float(sum(values))
