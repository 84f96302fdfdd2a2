"""Implements ``best_of``: requests more choices from vLLM than it returns, and selects the best."""

from dataclasses import dataclass
from itertools import count
from typing import Any, Self

from worker.job.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Ranking:
    """Selects the best ``n`` of ``width`` choices for each prompt.

    vLLM ranks the choices of a beam search. Sampled choices are ranked here by the sum of the log
    probabilities of their tokens, which are returned only if the caller requested them.
    """

    n: int
    width: int
    is_ranked_by_vllm: bool
    shows_logprobs: bool

    @classmethod
    def request_candidates(cls, body: dict[str, Any], sampling: Sampling) -> Self:
        """Change a body so that vLLM returns all choices and the log probabilities to rank them."""
        body["n"] = sampling.width
        logprobs = body.get("logprobs")
        shows_logprobs = logprobs is not None and logprobs is not False
        if not sampling.use_beam_search and not shows_logprobs:
            # ``logprobs`` is a boolean in chat completions, and a number in completions.
            body["logprobs"] = True if "messages" in body else 0
        return cls(sampling.n, sampling.width, sampling.use_beam_search, shows_logprobs)

    def select_best(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return a response with only the best choices for each prompt, renumbered from 0."""
        choices = sorted(response["choices"], key=lambda choice: int(choice["index"]))
        best: list[dict[str, Any]] = []
        for start in range(0, len(choices), self.width):
            group = choices[start : start + self.width]
            if not self.is_ranked_by_vllm:
                group.sort(key=_likelihood, reverse=True)
            best += group[: self.n]
        if not self.shows_logprobs:
            best = [{**choice, "logprobs": None} for choice in best]
        indices = count()
        return {**response, "choices": [{**choice, "index": next(indices)} for choice in best]}


def _likelihood(choice: dict[str, Any]) -> float:
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        values = [token["logprob"] for token in logprobs["content"] or []]
    else:
        # The first token of an echoed prompt has no log probability, in any choice.
        values = [value for value in logprobs["token_logprobs"] if value is not None]
    return float(sum(values))
