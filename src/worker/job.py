"""The one place that knows the shapes a job's input can have."""

import difflib
from collections.abc import Container, Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from worker.errors import InvalidInput

ACCEPTED_INPUTS = """\
accepted inputs:
  {"prompt": "text", "sampling_params": {...}, "stream": true}
  {"messages": [{"role": "user", "content": "text"}], "sampling_params": {...}, "stream": true}
  {"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}
  {"route": "/v1/models", "method": "GET", "body": null}"""

# A message names no more mistakes than these, and of no key more characters.
MOST_TOLD = 5
LONGEST_KEY = 64

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_server_boolean = TypeAdapter(bool)


class Job(BaseModel):
    """A validated input. What may stand in every shape: how its stream is chunked.

    Of the three sizes 0 or null means the worker's default; of the delay null does, 0 is off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    max_batch_size: Annotated[int, Field(ge=0)] | None = None
    min_batch_size: Amount | None = None
    batch_size_growth_factor: Amount | None = None
    max_batch_delay_ms: Amount | None = None

    @staticmethod
    def parse(payload: Any) -> "OpenAIJob | RawJob":
        """Validate a job's ``input``; null values count as absent.

        Raises:
            InvalidInput: naming the field, or showing the accepted shapes.
        """
        given = payload if isinstance(payload, dict) else {}
        present = {str(key): value for key, value in given.items() if value is not None}
        shape = next((shape for shape in SHAPES if shape.marks & present.keys()), None)
        if shape is None:
            raise InvalidInput(
                f"The input is none of the shapes that this worker takes; {ACCEPTED_INPUTS}"
            )
        try:
            return shape.model_validate(present)
        except ValidationError as invalid:
            raise _refusal(
                invalid, [*shape.model_fields, *GATEWAY_KEYS.values()], present
            ) from None


# Ours and, for the same, the platform's gateway's.
GATEWAY_KEYS = {"route": "openai_route", "body": "openai_input"}


class OpenAIJob(Job):
    """A request to vLLM's own server, as the platform's gateway sends it or spelled out."""

    marks: ClassVar[frozenset[str]] = frozenset({"openai_route", "route"})

    route: str
    method: Literal["GET", "POST"]
    body: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Translate the gateway's keys. It loses the method: an empty body means GET."""
        spelled = dict(given)
        for ours, gateways in GATEWAY_KEYS.items():
            if gateways in spelled:
                spelled[ours] = spelled.pop(gateways)
        spelled.setdefault("method", "POST" if spelled.get("body") else "GET")
        return spelled

    @property
    def path(self) -> str:
        """The route without ``/v1``, which callers may leave out: ``/chat/completions``."""
        path = "/" + self.route.strip("/")
        return path.removeprefix("/v1") if path.startswith("/v1/") else path

    @property
    def stream(self) -> bool:
        """Whether vLLM's server will take the body's ``stream`` for true: it knows many words."""
        if self.method != "POST" or self.body is None:
            return False
        try:
            return _server_boolean.validate_python(self.body.get("stream"))
        except ValidationError:
            return False


class Message(BaseModel):
    """One chat turn. The model's chat template decides which roles and further keys it knows."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    role: str
    content: str | list[dict[str, Any]] | None = None

    @field_validator("content")
    @classmethod
    def _text_is_text(cls, content: Any) -> Any:
        """Refuse a part that vLLM would pass over without a word to the caller."""
        parts = content if isinstance(content, list) else []
        if any(part.get("type") == "text" and type(part.get("text")) is not str for part in parts):
            raise ValueError("a part of type text has its words under text, as a string")
        return content


class RawJob(Job):
    """A prompt or a conversation, straight to the engine."""

    marks: ClassVar[frozenset[str]] = frozenset({"prompt", "messages"})

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    apply_chat_template: bool = False
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False

    @property
    def conversation(self) -> list[dict[str, Any]] | None:
        """The turns that the chat template renders; None if the prompt goes in as it is."""
        if self.messages is not None:
            return [message.model_dump(exclude_unset=True) for message in self.messages]
        if self.apply_chat_template:
            return [{"role": "user", "content": self.prompt}]
        return None


SHAPES: tuple[type[OpenAIJob] | type[RawJob], ...] = (OpenAIJob, RawJob)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Refuse a key by name, with the nearest known one."""
    if len(key) > LONGEST_KEY:
        return f"unknown key {key[:LONGEST_KEY]!r}..."
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"unknown key {key!r}" + (f": did you mean {near[0]!r}?" if near else "")


def _refusal(invalid: ValidationError, known: Iterable[str], given: Container[str]) -> InvalidInput:
    """Say of the first errors which field each is in; never what stood there."""
    told, fields = [], []
    for error in invalid.errors(include_input=False, include_url=False)[:MOST_TOLD]:
        first, *rest = (str(part) for part in error["loc"] or ("input",))
        # A caller who wrote the gateway's key is told of that one.
        gateways = GATEWAY_KEYS.get(first, first)
        fields.append(".".join((gateways if gateways in given else first, *rest)))
        told.append(
            unknown_key(fields[-1], known)
            if error["type"] == "extra_forbidden"
            else f"{fields[-1]}: {error['msg'].removeprefix('Value error, ')}"
        )
    return InvalidInput("; ".join(told), param=fields[0])
