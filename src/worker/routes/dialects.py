"""The two forms of raw answers: the worker's own, and LLM Engine's."""

from collections.abc import Callable
from typing import Any, Protocol

from worker.chunking import ChunkPolicy
from worker.engine import Delta
from worker.job import RawJob

# Every piece is a chunk of its own.
ONE_BY_ONE = ChunkPolicy(largest=1, smallest=1, growth=1, max_delay=0)


class Dialect(Protocol):
    """One answer while it grows."""

    @property
    def policy(self) -> ChunkPolicy | None:
        """How the answer is chunked, where the job's chunk keys do not apply."""

    def grow(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return one yield: the output that is new since the last one."""

    def item(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return a whole answer as an item of a list."""


class RawDialect:
    """The worker's own form: ``n`` choices of tokens, and the usage.

    A yield has the new tokens and the usage so far; the last one also has the finish reasons.
    """

    policy: ChunkPolicy | None = None

    def __init__(self, job: RawJob, request_id: str) -> None:
        self._n = job.sampling_params.n
        self._request_id = request_id
        self._output_tokens = 0
        self._ends: dict[int, dict[str, Any]] = {}

    def grow(self, deltas: list[Delta]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._n)]
        whole: dict[str, Any] = {"choices": choices}
        for delta in deltas:
            choice = choices[delta.index]
            choice["tokens"].append(delta.text)
            self._output_tokens += delta.tokens
            for holder, key in (
                (choice, "logprobs"),
                (choice, "token_ids"),
                (whole, "prompt_logprobs"),
            ):
                if (new := getattr(delta, key)) is not None:
                    holder.setdefault(key, []).extend(new)
            if delta.finish_reason:
                self._ends[delta.index] = {
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
        whole["usage"] = {"input": deltas[-1].prompt_tokens, "output": self._output_tokens}
        if len(self._ends) == self._n:
            for index, end in self._ends.items():
                choices[index].update(end)
            whole["request_id"] = self._request_id
        return whole

    def item(self, deltas: list[Delta]) -> dict[str, Any]:
        return self.grow(deltas)


class LLMEngineDialect:
    """LLM Engine's form: one text, and how many tokens there are so far."""

    def __init__(self, job: RawJob, request_id: str) -> None:
        self._request_id = request_id
        self._stream = job.stream
        self._log_probs = job.sampling_params.return_token_log_probs
        self._output_tokens = 0
        # An event has room for one token's log probability.
        self.policy = ONE_BY_ONE if self._log_probs else None

    def grow(self, deltas: list[Delta]) -> dict[str, Any]:
        self._output_tokens += sum(delta.tokens for delta in deltas)
        finished = any(delta.finish_reason for delta in deltas)
        output: dict[str, Any] = {"text": "".join(delta.text for delta in deltas)}
        if self._stream:
            output["finished"] = finished
        if finished:
            output["num_prompt_tokens"] = deltas[-1].prompt_tokens
        output["num_completion_tokens"] = self._output_tokens
        if self._log_probs:
            tokens = [
                {"token": position["token"], "log_prob": position["logprob"]}
                for delta in deltas
                for position in delta.logprobs or []
            ]
            output |= {"token": next(iter(tokens), None)} if self._stream else {"tokens": tokens}
        return {"request_id": self._request_id, "output": output}

    def item(self, deltas: list[Delta]) -> dict[str, Any]:
        output: dict[str, Any] = self.grow(deltas)["output"]
        return output


DIALECTS: dict[str, Callable[[RawJob, str], Dialect]] = {
    "raw": RawDialect,
    "llm_engine": LLMEngineDialect,
}
