"""The requests of LLM Engine's batches, validated."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from worker.dialects.llm_engine.completions import Parameters
from worker.errors import InvalidInput
from worker.validation import (
    LONGEST_KEY,
    MOST_PAIRS,
    Metadata,
    Strict,
    without_nulls,
)
from worker.validation import Text as Whole

# Seconds: LLM Engine's default, and its most.
DAY = 86_400
LONGEST = 2 * DAY

# What a request may say of machines: they are the endpoint's.
RESOURCES = ("cpus", "gpus", "memory", "gpu_type", "storage", "nodes_per_worker")
# What LLM Engine's client writes into model_config by itself.
UNASKED = {"num_shards": 1}

_CONFIG = "model_config"

# The client writes null wherever its models have an optional key. vLLM's server takes null for most
# keys of a body, but not for those in these parts, whose keys are OpenAI's, however deep.
PARTS = ("messages", "input", "tools", "tool_choice", "response_format")
# Keys in them under which a caller's own objects stand: null may be a value there.
OWN = ("parameters", "schema", "arguments")
# What the client calls a key, since its models can't have one of that name.
_WRITTEN = {"schema_": "schema"}

Text = Annotated[str, Field(min_length=1)]
# As long as Linux takes it.
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
PriorityText = Annotated[Whole, Field(max_length=LONGEST_KEY)]


class Config(BaseModel):
    """What a request says of the model: its name counts, how it would be started does not."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, hide_input_in_errors=True)

    model: Text
    labels: Metadata = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        return without_nulls(values) if isinstance(values, dict) else values


class Priority(Strict):
    """A priority that was given later than the request."""

    priority: PriorityText | None = None


class Content(Parameters):
    """The parameters that all prompts of a v1 batch share; the prompts themselves are apart."""

    # Without defaults there.
    max_new_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)]


class BatchCompletions(Strict):
    """What both versions ask: where the input is, where the output goes, and for how long."""

    config: Annotated[Config, Field(alias=_CONFIG)]
    output_data_path: PathText
    input_data_path: PathText | None = None
    content: Any = None
    labels: Metadata = Field(default_factory=dict)
    data_parallelism: Annotated[int, Field(ge=1, le=64)] = 1
    max_runtime_sec: Annotated[int, Field(ge=1, le=LONGEST)] = DAY
    priority: PriorityText | None = None
    tool_config: Any = None
    cpus: Any = None
    gpus: Any = None
    memory: Any = None
    gpu_type: Any = None
    storage: Any = None
    nodes_per_worker: Any = None

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if self.tool_config is not None:
            # LLM Engine's one tool runs code of the model's on the server.
            message = (
                "this worker runs no tools, and no code that a model has written; the requests of "
                "a v2 batch may have tools of their own, whose calls are part of the output"
            )
            raise InvalidInput(f"tool_config: {message}", param="tool_config")
        if (self.content is None) == (self.input_data_path is None):
            message = "either the content itself, or input_data_path"
            raise InvalidInput(f"content: {message}", param="content")
        if len(self._all_labels) > MOST_PAIRS:
            message = f"with those of {_CONFIG} at most {MOST_PAIRS} pairs"
            raise InvalidInput(f"labels: {message}", param="labels")
        return self

    @property
    def _all_labels(self) -> dict[str, str]:
        """The labels, which LLM Engine's client writes in two places."""
        return {**self.config.labels, **self.labels}

    @property
    def metadata(self) -> dict[str, str]:
        """The labels, and what has no effect."""
        found = self._all_labels
        if names := self.without_effect:
            found["without_effect"] = f"{', '.join(names)}: the endpoint's settings decide"
        return found

    @property
    def without_effect(self) -> list[str]:
        """The first names of what is accepted, but decided by the endpoint's settings."""
        config = self.config.model_extra or {}
        asked = [name for name, value in config.items() if value and value != UNASKED.get(name)]
        names = [
            *(name for name in RESOURCES if getattr(self, name) is not None),
            *(f"{_CONFIG}.{name}" for name in asked),
        ]
        return [name[:LONGEST_KEY] for name in names[:MOST_PAIRS]]

    @property
    def rank(self) -> int | None:
        """The priority as a scheduler reads it; None: it is a word, or not given."""
        text = (self.priority or "").strip()
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a v2 batch's request without nulls that mean that nothing was given."""
    return {
        key: _plain(value) if key in PARTS else value
        for key, value in body.items()
        if value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_WRITTEN.get(key, key): item for key, item in value.items() if item is not None}
    return {key: item if key in OWN else _plain(item) for key, item in named.items()}
