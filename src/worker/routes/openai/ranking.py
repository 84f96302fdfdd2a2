"""``best_of``: more choices than were asked for, of which the likeliest are returned."""

from dataclasses import dataclass
from itertools import count
from typing import Any, Self

from worker.job.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Ranking:
    """``width`` choices a prompt, of which ``n`` are kept.

    Beams come ranked; what is sampled is ranked by the sum of its tokens' log probabilities, which
    are told only to those who asked for them.
    """

    n: int
    width: int
    ranked: bool
    tells_logprobs: bool

    @classmethod
    def begin(cls, body: dict[str, Any], asked: Sampling) -> Self:
        """Have a body ask vLLM's server for all choices, and for what they are ranked by."""
        body["n"] = asked.width
        told = body.get("logprobs")
        tells = told is not None and told is not False
        if not asked.use_beam_search and not tells:
            # Chat completions take a switch there, completions a count.
            body["logprobs"] = True if "messages" in body else 0
        return cls(asked.n, asked.width, asked.use_beam_search, tells)

    def best(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Keep the best of an answer's choices, in order, for each of its prompts."""
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        kept: list[dict[str, Any]] = []
        for first in range(0, len(choices), self.width):
            group = choices[first : first + self.width]
            if not self.ranked:
                group.sort(key=_likelihood, reverse=True)
            kept += group[: self.n]
        if not self.tells_logprobs:
            kept = [{**choice, "logprobs": None} for choice in kept]
        numbers = count()
        return {**answer, "choices": [{**choice, "index": next(numbers)} for choice in kept]}


def _likelihood(choice: dict[str, Any]) -> float:
    told = choice["logprobs"]
    if "content" in told:
        values = [token["logprob"] for token in told["content"] or []]
    else:
        # An echoed prompt has a first token of unknown likelihood; it is the same for all.
        values = [value for value in told["token_logprobs"] if value is not None]
    return float(sum(values))
