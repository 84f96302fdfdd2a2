"""Implements ``best_of``: requests more choices from vLLM than it returns, and selects the best."""

from dataclasses import dataclass
from itertools import count
from typing import Any, Self

from worker.job.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Ranking:
    """Selects the best ``n`` of ``num_candidates`` choices for each prompt.

    vLLM ranks the choices of a beam search. Sampled choices are ranked here by the sum of the log
    probabilities of their tokens, which are returned only if the caller requested them.
    """

    n: int
    num_candidates: int
    is_ranked_by_vllm: bool
    returns_logprobs: bool

    @classmethod
    def request_candidates(cls, body: dict[str, Any], sampling: Sampling) -> Self:
        """Make a body request all candidates and their log probabilities; return the ranking."""
        body["n"] = sampling.num_candidates
        logprobs = body.get("logprobs")
        returns_logprobs = logprobs is not None and logprobs is not False
        if not sampling.use_beam_search and not returns_logprobs:
            # ``logprobs`` is a boolean in chat completions, and a number in completions.
            body["logprobs"] = True if "messages" in body else 0
        return cls(sampling.n, sampling.num_candidates, sampling.use_beam_search, returns_logprobs)

    def select_best(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return a response with only the best choices for each prompt, renumbered from 0."""
        choices = sorted(response["choices"], key=lambda choice: int(choice["index"]))
        best: list[dict[str, Any]] = []
        for start in range(0, len(choices), self.num_candidates):
            group = choices[start : start + self.num_candidates]
            if not self.is_ranked_by_vllm:
                group.sort(key=_total_logprob, reverse=True)
            best += group[: self.n]
        if not self.returns_logprobs:
            best = [{**choice, "logprobs": None} for choice in best]
        indices = count()
        return {**response, "choices": [{**choice, "index": next(indices)} for choice in best]}


def _total_logprob(choice: dict[str, Any]) -> float:
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        values = [token["logprob"] for token in logprobs["content"] or []]
    else:
        # The first token of an echoed prompt has no log probability, in any choice.
        values = [value for value in logprobs["token_logprobs"] if value is not None]
    return float(sum(values))
