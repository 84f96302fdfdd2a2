"""The worker's own format of answers to raw jobs."""

from typing import Any

from worker.chunking import ChunkPolicy
from worker.engine import Delta
from worker.job import RawJob


class RawFormatter:
    """Formats an answer as ``n`` choices of tokens, and the usage.

    A yield contains the new tokens and the usage so far. The last yield also contains the finish
    reasons and the request's id.
    """

    chunk_policy: ChunkPolicy | None = None

    def __init__(self, job: RawJob, request_id: str) -> None:
        self._n = job.sampling_params.n
        self._request_id = request_id
        self._prompt_tokens = self._output_tokens = 0
        self._finish_reasons: dict[int, dict[str, Any]] = {}

    def format_chunk(self, deltas: list[Delta]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._n)]
        chunk: dict[str, Any] = {"choices": choices}
        for delta in deltas:
            choice = choices[delta.index]
            choice["tokens"].append(delta.text)
            self._prompt_tokens = delta.prompt_tokens
            self._output_tokens += delta.tokens
            for target, key in (
                (choice, "logprobs"),
                (choice, "token_ids"),
                (chunk, "prompt_logprobs"),
            ):
                if (values := getattr(delta, key)) is not None:
                    target.setdefault(key, []).extend(values)
            if delta.finish_reason:
                self._finish_reasons[delta.index] = {
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
        chunk["usage"] = {"input": self._prompt_tokens, "output": self._output_tokens}
        if deltas and len(self._finish_reasons) == self._n:
            for index, reasons in self._finish_reasons.items():
                choices[index].update(reasons)
            chunk["request_id"] = self._request_id
        return chunk

    def format_item(self, deltas: list[Delta]) -> dict[str, Any]:
        return self.format_chunk(deltas)
