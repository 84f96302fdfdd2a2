"""Prompts and conversations, straight to the engine: one, or a list of them."""

from collections.abc import Mapping, Set
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationInfo,
    field_validator,
    model_validator,
)

from worker.errors import InvalidInput
from worker.job.base import SAMPLING, Job, present
from worker.job.sampling import BESIDE, Sampling

# A job has at most 20 MB of input, and each prompt of a list is a request of its own.
MOST_PROMPTS = 10_000


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
    """A prompt or a conversation."""

    marks: ClassVar[frozenset[str]] = frozenset({"prompt", "messages"})

    prompt: str | list[int] | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    apply_chat_template: bool = False
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # By default a turn of the assistant begins, unless the last message is to be continued.
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    model: str | None = None
    lora: str | None = None
    sampling_params: Sampling = Field(default_factory=Sampling)
    return_token_ids: bool = False
    stream: bool = False
    format: Literal["raw", "llm_engine"] = "raw"

    @model_validator(mode="before")
    @classmethod
    def _gather_sampling(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Move what stands beside ``sampling_params``, where other servers have it, into them."""
        beside = given.keys() & BESIDE
        params = given.get(SAMPLING, {})
        if not beside or not isinstance(params, dict):
            return given
        params = present(params)
        if twice := sorted(beside & params.keys()):
            message = f"{twice[0]} stands in {SAMPLING} and beside them"
            raise InvalidInput(message, param=twice[0])
        rest = {key: value for key, value in given.items() if key not in beside}
        return {**rest, SAMPLING: {**params, **{key: given[key] for key in beside}}}

    @field_validator("prompt", mode="before")
    @classmethod
    def _text_or_ids(cls, prompt: Any) -> Any:
        """Say in one sentence what pydantic would say of each alternative."""
        ids = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) or (ids and all(type(id_) is int and id_ >= 0 for id_ in ids)):
            return prompt
        raise ValueError("a text, or a list of token ids; prompts takes a list of prompts")

    @field_validator("apply_chat_template")
    @classmethod
    def _text_can_be_a_message(cls, apply: bool, info: ValidationInfo) -> bool:
        if apply and isinstance(info.data.get("prompt"), list):
            raise ValueError("token ids are no text that a chat template could take")
        return apply

    @model_validator(mode="after")
    def _something_to_answer(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise ValueError("a prompt or messages")
        return self

    @property
    def streamed(self) -> bool:
        """Whether the answer can come bit by bit: choices that are ranked come at the end."""
        return self.stream and not self.sampling_params.ranked

    @property
    def conversation(self) -> list[dict[str, Any]] | None:
        """The turns that the chat template renders; None if the prompt goes in as it is."""
        if self.messages is not None:
            return [message.model_dump(exclude_unset=True) for message in self.messages]
        if self.apply_chat_template:
            return [{"role": "user", "content": self.prompt}]
        return None


class ListJob(Job):
    """Several prompts or conversations: one job, whose items are answered side by side."""

    marks: ClassVar[frozenset[str]] = frozenset({"prompts", "messages_list"})

    # What holds for all items, with an empty prompt.
    shared: InstanceOf[RawJob]
    # Validated one by one: an item that is wrong fails alone, in its place.
    items: tuple[InstanceOf[RawJob] | InstanceOf[InvalidInput], ...]
    stream: bool = False
    use_tqdm: bool | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Validate what holds for all items, which is refused for all, then each item.

        Raises:
            InvalidInput: naming the field.
        """
        shared = dict(given)
        key = _only(given.keys() & (cls.marks | RawJob.marks))
        values, params = shared.pop(key), shared.pop(SAMPLING, {})
        own = {"use_tqdm": shared.pop("use_tqdm", None), "stream": shared.pop("stream", False)}
        if not isinstance(values, list) or not 0 < len(values) <= MOST_PROMPTS:
            raise InvalidInput(f"{key}: a list of 1 to {MOST_PROMPTS:,} items", param=key)
        if isinstance(params, list) and len(params) != len(values):
            message = f"{SAMPLING}: {len(params)} of them for {len(values)} {key}"
            raise InvalidInput(message, param=SAMPLING)
        own_params = isinstance(params, list)
        common = RawJob.read({**shared, "prompt": "", **({} if own_params else {SAMPLING: params})})
        if not own_params:
            # Validated once, with what stood beside them.
            shared = {name: value for name, value in shared.items() if name not in BESIDE}
            params = [common.sampling_params] * len(values)
        item = {"prompts": "prompt", "messages_list": "messages"}[key]
        pairs = zip(values, params, strict=True)
        items = tuple(_item({**shared, item: value, SAMPLING: each}) for value, each in pairs)
        return super().read({**own, "shared": common, "items": items})


def _only(keys: Set[str]) -> str:
    if len(keys) > 1:
        told = " and ".join(sorted(keys))
        raise InvalidInput(f"{told}: one of them, not more", param=min(keys))
    return next(iter(keys))


def _item(given: Mapping[str, Any]) -> RawJob | InvalidInput:
    try:
        return RawJob.read(present(given))
    except InvalidInput as error:
        return error
