"""What scripts get: objects with the names of vLLM's, and the errors."""

from dataclasses import dataclass, field
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
        prompt: as it was given; None for token ids and conversations.
        prompt_token_ids: if they are known: those that were given, or a batch's.
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


@dataclass(frozen=True, slots=True)
class Candidates:
    """How many candidates of each position were asked for; the chosen one may come on top."""

    count: int | None = field(default=None)

    def position(self, entry: dict[str, Any]) -> Position:
        return {
            one["id"]: Logprob(one["logprob"], self.rank(place), one["token"])
            for place, one in enumerate(entry["top"], start=1)
        }

    def rank(self, place: int) -> int | None:
        known = self.count is not None and (self.count < 0 or place <= self.count)
        return place if known else None


def of_result(item: Item, result: dict[str, Any]) -> RequestOutput:
    """Return the result of an item of a list."""
    usage = result.get("usage") or {}
    of_prompt = result.get("prompt_logprobs")
    candidates = Candidates(item.params.get("prompt_logprobs"))
    return RequestOutput(
        request_id=result.get("request_id", ""),
        prompt=item.prompt,
        prompt_token_ids=item.token_ids,
        prompt_logprobs=None
        if of_prompt is None
        else [None if entry is None else candidates.position(entry) for entry in of_prompt],
        outputs=[_choice(index, choice, item) for index, choice in enumerate(result["choices"])],
        lora_request=item.adapter,
        num_prompt_tokens=usage.get("input", 0),
    )


def _choice(index: int, choice: dict[str, Any], item: Item) -> CompletionOutput:
    entries = choice.get("logprobs")
    candidates = Candidates(item.params.get("logprobs"))
    return CompletionOutput(
        index=index,
        text="".join(choice["tokens"]),
        token_ids=choice.get("token_ids", []),
        cumulative_logprob=None if entries is None else sum(one["logprob"] for one in entries),
        logprobs=None if entries is None else [candidates.position(entry) for entry in entries],
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        lora_request=item.adapter,
    )
