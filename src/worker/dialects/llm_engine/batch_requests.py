"""The requests of LLM Engine's batches, validated."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from worker.dialects.llm_engine.completions import CompletionParameters
from worker.errors import InvalidInput
from worker.validation import (
    MAX_KEY_LENGTH,
    MAX_METADATA_PAIRS,
    Metadata,
    StrictModel,
    Text,
    drop_nulls,
)

# LLM Engine's default and maximum run time of a batch, in seconds.
DAY_S = 86_400
MAX_RUNTIME_S = 2 * DAY_S

# Keys of a request that describe machines. They have no effect: the endpoint's settings decide.
MACHINE_KEYS = ("cpus", "gpus", "memory", "gpu_type", "storage", "nodes_per_worker")
# Defaults that LLM Engine's client writes into model_config; they are not reported as ignored.
CLIENT_DEFAULTS = {"num_shards": 1}

_CONFIG_KEY = "model_config"

# The client writes null for each optional key without a value. vLLM's server accepts null for most
# keys of a body, but refuses it anywhere below the keys here, whose schema is OpenAI's.
NESTED_KEYS = ("messages", "input", "tools", "tool_choice", "response_format")
# Keys below ``NESTED_KEYS`` that contain objects of the caller, in which null may be a value.
OPAQUE_KEYS = ("parameters", "schema", "arguments")
# JSON keys by the client's names for them: its models can't have a field named "schema".
_JSON_KEYS = {"schema_": "schema"}

NonEmptyText = Annotated[str, Field(min_length=1)]
# 4096 is the longest path that Linux accepts.
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
PriorityText = Annotated[Text, Field(max_length=MAX_KEY_LENGTH)]


class ModelConfig(BaseModel):
    """The ``model_config`` of a request; only the model's name and the labels have an effect."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, hide_input_in_errors=True)

    model: NonEmptyText
    labels: Metadata = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        return drop_nulls(values) if isinstance(values, dict) else values


class PriorityUpdate(StrictModel):
    """A priority that was set after the batch was created."""

    priority: PriorityText | None = None


class SharedParameters(CompletionParameters):
    """The parameters that all prompts of a v1 batch share."""

    # LLM Engine's completions have defaults for the two keys below, but its batches have none.
    max_new_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)]


class BatchCompletionsRequest(StrictModel):
    """A request for a batch, with the keys that both versions of the route share."""

    config: Annotated[ModelConfig, Field(alias=_CONFIG_KEY)]
    output_data_path: PathText
    input_data_path: PathText | None = None
    content: Any = None
    labels: Metadata = Field(default_factory=dict)
    data_parallelism: Annotated[int, Field(ge=1, le=64)] = 1
    max_runtime_sec: Annotated[int, Field(ge=1, le=MAX_RUNTIME_S)] = DAY_S
    priority: PriorityText | None = None
    tool_config: Any = None
    cpus: Any = None
    gpus: Any = None
    memory: Any = None
    gpu_type: Any = None
    storage: Any = None
    nodes_per_worker: Any = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.tool_config is not None:
            # LLM Engine's only tool executes code that the model has written, on the server.
            message = (
                "this worker runs no tools, and no code that a model has written; the requests of "
                "a v2 batch may have tools of their own, whose calls are part of the output"
            )
            raise InvalidInput(f"tool_config: {message}", param="tool_config")
        if (self.content is None) == (self.input_data_path is None):
            message = "either the content itself, or input_data_path"
            raise InvalidInput(f"content: {message}", param="content")
        if len(self._all_labels) > MAX_METADATA_PAIRS:
            message = f"with those of {_CONFIG_KEY} at most {MAX_METADATA_PAIRS} pairs"
            raise InvalidInput(f"labels: {message}", param="labels")
        return self

    @property
    def _all_labels(self) -> dict[str, str]:
        """The labels of the request and of its ``model_config``, where the client repeats them."""
        return {**self.config.labels, **self.labels}

    @property
    def metadata(self) -> dict[str, str]:
        """The labels, and under ``without_effect`` the names of the ignored keys."""
        metadata = self._all_labels
        if names := self.ignored_keys:
            metadata["without_effect"] = f"{', '.join(names)}: the endpoint's settings decide"
        return metadata

    @property
    def ignored_keys(self) -> list[str]:
        """Names of up to 16 keys that have no effect, because the endpoint's settings decide."""
        config = self.config.model_extra or {}
        keys = [key for key, item in config.items() if item and item != CLIENT_DEFAULTS.get(key)]
        names = [
            *(name for name in MACHINE_KEYS if getattr(self, name) is not None),
            *(f"{_CONFIG_KEY}.{key}" for key in keys),
        ]
        return [name[:MAX_KEY_LENGTH] for name in names[:MAX_METADATA_PAIRS]]

    @property
    def scheduler_priority(self) -> int | None:
        """The priority as an integer, or None if it is not set, is no integer or is too long."""
        text = (self.priority or "").strip()
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None


def drop_optional_nulls(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a v2 request without the null values that mean an absent key.

    Below ``NESTED_KEYS``, the client's names of keys are also replaced (``_JSON_KEYS``).
    """
    return {
        key: _drop_nested_nulls(value) if key in NESTED_KEYS else value
        for key, value in body.items()
        if value is not None
    }


def _drop_nested_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_nested_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {_JSON_KEYS.get(key, key): item for key, item in value.items() if item is not None}
    return {
        key: item if key in OPAQUE_KEYS else _drop_nested_nulls(item)
        for key, item in renamed.items()
    }
