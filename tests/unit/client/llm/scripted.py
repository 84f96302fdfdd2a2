"""A worker's answers to lists, without a model: every text is echoed."""

import json
from dataclasses import dataclass, field
from typing import Any

from support.deployed import Failed

RETRYABLE = {"message": "the engine is full", "code": 503, "retryable": True}


def result(asked: Any) -> dict[str, Any]:
    choice = {"tokens": [f"{asked}!"], "token_ids": [7], "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"input": 1, "output": 1}, "request_id": "r"}


@dataclass
class Worker:
    """Answers jobs, and keeps what they held.

    Attributes:
        errors: of items, by what they ask; one that is retryable holds once.
        failures: the next jobs' errors, one each.
        most: results that the platform keeps of a job.
    """

    given: list[Any] = field(default_factory=list)
    errors: dict[Any, dict[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    most: int = 10_000

    def answer(self, given: Any) -> list[Any]:
        self.given.append(given)
        if self.failures:
            raise Failed(json.dumps({"error": self.failures.pop(0)}))
        asked = given.get("prompts") or given["messages_list"]
        if len(asked) > self.most:
            return []
        results = [self._one(one) for one in asked]
        # As a worker splits what one yield has no room for.
        return [{"outputs": results[:2]}, {"index": 2, "outputs": results[2:]}][: len(asked)]

    def _one(self, asked: Any) -> dict[str, Any]:
        error = self.errors.get(str(asked))
        if error is None:
            return result(asked)
        if error["retryable"]:
            del self.errors[str(asked)]
        return {"error": error}

    @property
    def sizes(self) -> list[int]:
        """How many items jobs held."""
        return [len(given.get("prompts") or given["messages_list"]) for given in self.given]
