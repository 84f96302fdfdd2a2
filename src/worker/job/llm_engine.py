"""The input of Scale's LLM Engine (``"format": "llm_engine"``), with its names and defaults."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from worker.errors import InvalidInput
from worker.job.base import Job
from worker.limits.spelling import GUIDED
from worker.validation import SAMPLING, Strict, without_nulls

FORMAT = "llm_engine"

# LLM Engine's names -> those in sampling_params.
RENAMED = {"max_new_tokens": "max_tokens", "stop_sequences": "stop"}
# Arguments of LLM Engine's client that are not for the server.
CLIENT_ONLY = frozenset({"timeout", "request_headers"})

# The first mistake in a list is enough.
Texts = Annotated[list[str], Field(fail_fast=True)]
Penalty = Annotated[float, Field(ge=0, le=2)]


class Parameters(Strict):
    """How an answer is sampled: what completions and batches share."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.2
    stop_sequences: Texts | None = None
    return_token_log_probs: bool = False
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    skip_special_tokens: bool | None = None


class LLMEngineJob(Job, Parameters):
    """A completion (``prompt``), or a batch of them (``prompts``)."""

    prompt: str | None = None
    prompts: list[Any] | None = None
    model: str | None = None
    include_stop_str_in_output: bool | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    stream: bool = False
    use_tqdm: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_client_only(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key not in CLIENT_ONLY}

    @model_validator(mode="after")
    def _needs_prompt(self) -> Self:
        if (self.prompt is None) == (self.prompts is None):
            raise ValueError("either a prompt or prompts")
        return self

    @model_validator(mode="after")
    def _held_to_one(self) -> Self:
        if len(given := sorted(self.model_fields_set & GUIDED)) > 1:
            message = f"an answer is held to one of {', '.join(given)}, not more"
            raise InvalidInput(message, param=given[0])
        return self

    @property
    def as_raw(self) -> dict[str, Any]:
        """The same input in the raw form."""
        values = without_nulls({name: getattr(self, name) for name in type(self).model_fields})
        kept = {"prompt", "prompts", "model", "stream", "use_tqdm", *Job.model_fields}
        return {
            **{name: value for name, value in values.items() if name in kept},
            SAMPLING: {
                RENAMED.get(name, name): value for name, value in values.items() if name not in kept
            },
            "format": FORMAT,
        }
