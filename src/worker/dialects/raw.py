"""The worker's own form of raw answers."""

from typing import Any

from worker.chunking import ChunkPolicy
from worker.engine import Delta
from worker.job import RawJob


class RawForm:
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
