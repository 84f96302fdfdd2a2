"""The form of Scale's LLM Engine, marked by ``"format": "llm_engine"``: its names and defaults."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from worker.job.base import Job

FORMAT = "llm_engine"

# Theirs -> ours, inside sampling_params.
RENAMED = {"max_new_tokens": "max_tokens", "stop_sequences": "stop"}
# What their client keeps to itself, though its users pass it like the rest.
OF_THE_CLIENT = frozenset({"timeout", "request_headers"})

Penalty = Annotated[float, Field(ge=0, le=2)]


class LLMEngineJob(Job):
    """A completion, or a batch (v1) of them: ``prompts`` is what makes it one."""

    prompt: str | None = None
    prompts: list[Any] | None = None
    model: str | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.2
    stop_sequences: list[str] | None = None
    return_token_log_probs: bool = False
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    stream: bool = False
    use_tqdm: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_the_clients(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in given.items() if key not in OF_THE_CLIENT}

    @model_validator(mode="after")
    def _something_to_answer(self) -> Self:
        if (self.prompt is None) == (self.prompts is None):
            raise ValueError("either a prompt or prompts")
        return self

    @property
    def spelled_out(self) -> dict[str, Any]:
        """The same in the worker's own raw form."""
        named = {
            name: value
            for name in type(self).model_fields
            if (value := getattr(self, name)) is not None
        }
        kept = {"prompt", "prompts", "model", "stream", "use_tqdm", *Job.model_fields}
        return {
            **{name: value for name, value in named.items() if name in kept},
            "sampling_params": {
                RENAMED.get(name, name): value for name, value in named.items() if name not in kept
            },
            "format": FORMAT,
        }
