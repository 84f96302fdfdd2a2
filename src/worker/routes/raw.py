"""The raw path: prompts and messages straight to the engine, answered in choices of tokens."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from worker.chunking import Piece
from worker.engine import Delta, Engine
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.routes.answer import Answer, json_size
from worker.settings import Settings

# Every choice has its place in every yield, and a yield has a limit.
MOST_CHOICES = 256


def answer(job: RawJob, request_id: str, engine: Engine, _: Settings) -> Answer[Delta]:
    n = job.sampling_params.get("n") or 1
    if isinstance(n, int) and n > MOST_CHOICES:
        raise InvalidInput(f"sampling_params.n: at most {MOST_CHOICES} choices", param="n")

    async def pieces() -> AsyncGenerator[Piece[Delta], None]:
        async with contextlib.aclosing(engine.generate(job, request_id)) as deltas:
            async for delta in deltas:
                size = json_size(delta.text) + (json_size(delta.logprobs) if delta.logprobs else 0)
                yield Piece(delta, weight=delta.tokens, size=size)

    return Answer(
        stream=job.stream,
        pieces=pieces,
        render=_Choices(n).grow,
    )


class _Choices:
    """The choices of one answer, as far as they have come.

    Yields hold what is new, but the usage so far; the last one also tells how each choice ended.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._output_tokens = 0
        self._ends: dict[int, dict[str, Any]] = {}

    def grow(self, deltas: list[Delta]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._n)]
        for delta in deltas:
            choice = choices[delta.index]
            choice["tokens"].append(delta.text)
            self._output_tokens += delta.tokens
            if delta.logprobs:
                choice.setdefault("logprobs", []).extend(delta.logprobs)
            if delta.finish_reason:
                self._ends[delta.index] = {
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
        if len(self._ends) == self._n:
            for index, end in self._ends.items():
                choices[index].update(end)
        usage = {"input": deltas[-1].prompt_tokens, "output": self._output_tokens}
        return {"choices": choices, "usage": usage}
