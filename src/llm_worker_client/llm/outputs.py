"""Outputs with the names and fields of vLLM's classes, and the errors that scripts get."""

from dataclasses import dataclass
from typing import Any

from llm_worker_client.llm.inputs import Item
from llm_worker_client.mapping.responses import Refusal


@dataclass(slots=True)
class Logprob:
    """One candidate token at one position.

    Attributes:
        logprob: Log probability; -9999.0 represents a probability of zero.
        rank: Rank of the token, where 1 is the likeliest; None if it is unknown.
        decoded_token: Text of the token; None if only the id is known.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# Candidates at one position by token id.
Candidates = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[Candidates] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """All completions of a prompt.

    Attributes:
        prompt: Text of the prompt; None if the caller passed only token ids or a conversation.
        prompt_token_ids: Token ids of the prompt if they are known from the caller or from a batch.
        num_prompt_tokens: Number of prompt tokens, which is always known.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[Candidates | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: Any = None
    lora_request: Any = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None


class EndpointError(Exception):
    """A request was refused or not answered, or its job failed.

    Args:
        status: HTTP status.
        message: Reason of the failure.
        error: Error object, if the worker has sent one.
    """

    def __init__(self, status: int, message: str, error: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error

    @classmethod
    def from_refusal(cls, refusal: Refusal) -> "EndpointError":
        return cls(refusal.status, str(refusal), refusal.error)


class PromptError(EndpointError, ValueError):
    """A prompt or conversation failed.

    Args:
        index: Index of the prompt in the call's list.
        error: The worker's error object.
        outputs: The outputs of all prompts so far, in order; None for a prompt without an output.
    """

    def __init__(
        self, index: int, error: dict[str, Any], outputs: list[RequestOutput | None]
    ) -> None:
        status = error.get("code")
        message = f"prompt {index}: {error.get('message')}"
        super().__init__(status if isinstance(status, int) else 500, message, error)
        self.index = index
        self.outputs = outputs


def create_output(item: Item, result: dict[str, Any]) -> RequestOutput:
    """Return the output for an item from its result in the format of raw jobs."""
    entries, count = result.get("prompt_logprobs"), item.params.get("prompt_logprobs")
    token_ids = result.get("prompt_token_ids")
    return RequestOutput(
        request_id=result.get("request_id", ""),
        prompt=item.prompt,
        prompt_token_ids=item.token_ids if token_ids is None else token_ids,
        prompt_logprobs=None
        if entries is None
        else [entry and _read_candidates(entry, count) for entry in entries],
        outputs=[_create_completion(i, choice, item) for i, choice in enumerate(result["choices"])],
        lora_request=item.adapter,
        num_prompt_tokens=(result.get("usage") or {}).get("input", 0),
    )


def _create_completion(index: int, choice: dict[str, Any], item: Item) -> CompletionOutput:
    entries, count = choice.get("logprobs"), item.params.get("logprobs")
    return CompletionOutput(
        index=index,
        text="".join(choice["tokens"]),
        token_ids=choice.get("token_ids") or [],
        cumulative_logprob=None if entries is None else sum(entry["logprob"] for entry in entries),
        logprobs=None if entries is None else [_read_candidates(entry, count) for entry in entries],
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        lora_request=item.adapter,
    )


def _read_candidates(entry: dict[str, Any], count: int | None) -> Candidates:
    """Return the candidates of a position, likeliest first.

    A chosen token that is not among the ``count`` likeliest ones comes last. Its rank is None,
    because the worker doesn't send it.
    """
    return {
        candidate["id"]: Logprob(
            candidate["logprob"],
            rank if count is not None and (count < 0 or rank <= count) else None,
            candidate["token"],
        )
        for rank, candidate in enumerate(entry["top"], start=1)
    }
