"""What scripts get: objects with the names of vLLM's, and the errors."""

from dataclasses import dataclass
from typing import Any

from llm_worker_client.llm.prompts import Item
from llm_worker_client.mapping import Refusal


@dataclass(slots=True)
class Logprob:
    """One candidate token at one position.

    Attributes:
        logprob: -9999.0 stands for what can't be.
        rank: 1 for the likeliest; None if it is not known.
        decoded_token: None if only the id is known.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# A position's candidates by token id.
Position = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[Position] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answers to a prompt.

    Attributes:
        prompt: its text; None for token ids and conversations.
        prompt_token_ids: if they are known: those that the caller passed, or a batch's.
        num_prompt_tokens: how many they are, which is always known.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[Position | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: Any = None
    lora_request: Any = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None


class EndpointError(Exception):
    """The endpoint does not answer.

    Args:
        status: of HTTP.
        message: why.
        error: the worker's error object, if it is the worker's.
    """

    def __init__(self, status: int, message: str, error: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error

    @classmethod
    def of(cls, refusal: Refusal) -> "EndpointError":
        return cls(refusal.status, str(refusal), refusal.error)


class PromptError(EndpointError, ValueError):
    """A prompt has no answer.

    Args:
        index: its place in the list.
        error: the worker's error object.
        outputs: what the other prompts have got so far; None where there is nothing.
    """

    def __init__(
        self, index: int, error: dict[str, Any], outputs: list[RequestOutput | None]
    ) -> None:
        status = error.get("code")
        message = f"prompt {index}: {error.get('message')}"
        super().__init__(status if isinstance(status, int) else 500, message, error)
        self.index = index
        self.outputs = outputs


def output_of(item: Item, result: dict[str, Any]) -> RequestOutput:
    """Return the result of an item, in the raw form."""
    of_prompt = result.get("prompt_logprobs")
    ids = result.get("prompt_token_ids")
    return RequestOutput(
        request_id=result.get("request_id", ""),
        prompt=item.prompt,
        prompt_token_ids=item.token_ids if ids is None else ids,
        prompt_logprobs=None
        if of_prompt is None
        else [
            entry and _position(entry, item.params.get("prompt_logprobs")) for entry in of_prompt
        ],
        outputs=[_choice(index, choice, item) for index, choice in enumerate(result["choices"])],
        lora_request=item.adapter,
        num_prompt_tokens=(result.get("usage") or {}).get("input", 0),
    )


def _choice(index: int, choice: dict[str, Any], item: Item) -> CompletionOutput:
    entries, count = choice.get("logprobs"), item.params.get("logprobs")
    return CompletionOutput(
        index=index,
        text="".join(choice["tokens"]),
        token_ids=choice.get("token_ids") or [],
        cumulative_logprob=None if entries is None else sum(one["logprob"] for one in entries),
        logprobs=None if entries is None else [_position(entry, count) for entry in entries],
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        lora_request=item.adapter,
    )


def _position(entry: dict[str, Any], count: int | None) -> Position:
    """Return the candidates of a position; a rank beyond the count that was asked for is None."""
    return {
        one["id"]: Logprob(
            one["logprob"],
            rank if count is not None and (count < 0 or rank <= count) else None,
            one["token"],
        )
        for rank, one in enumerate(entry["top"], start=1)
    }
