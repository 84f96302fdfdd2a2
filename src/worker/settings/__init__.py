"""The worker's own settings."""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)

from worker.errors import Mistake, SettingsError
from worker.settings.environment import EXPORTS, Default, export
from worker.settings.examples import example
from worker.settings.values import boolean, text, unfit

# Of what is exported, what an operator may wonder about.
_WHY = {
    "RUNPOD_LOG_LEVEL": "the SDK's own DEBUG prints every answer",
    "HF_HOME": "in BASE_PATH",
}


def _fit(model: str) -> str:
    if told := unfit(model):
        raise ValueError(told)
    return model


Model = Annotated[str, AfterValidator(_fit)]
Flag = Annotated[bool, BeforeValidator(boolean)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """What the worker itself is told: field ``x`` is the environment variable ``X``.

    vLLM's own options are not listed here, since the installed vLLM's parser knows them
    (``worker.engine.options``). What each is for stands in
    ``builder/table``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model_name: Model
    embedding_model_name: Model | None = None
    base_path: Path = Path("/runpod-volume")
    compile_cache: Flag = True
    hf_token: SecretStr | None = None
    serve_api_key: SecretStr | None = None
    # The platform's own, of the endpoint that this worker belongs to.
    runpod_endpoint_id: str | None = None
    max_concurrency: Count = 300
    default_batch_size: Count = 50
    default_min_batch_size: Amount = 1
    default_batch_size_growth_factor: Amount = 3
    default_batch_max_delay_ms: Amount = 100
    default_max_tokens: Count = 16
    raw_openai_output: Flag = True
    strict_requests: Flag = False
    system_prompt: str | None = None
    disable_log_stats: Flag = True
    disable_log_requests: Flag = True
    # Read before all others: where they are, and what comes after them (worker.settings.sources).
    vllm_config_file: Path | None = None
    vllm_extra_args: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the worker's settings; a blank value counts as unset.

        Raises:
            SettingsError: all mistakes at once.
        """
        given = {name: environ.get(name.upper(), "").strip() for name in cls.model_fields}
        try:
            return cls.model_validate({name: value for name, value in given.items() if value})
        except ValidationError as invalid:
            raise SettingsError(
                [cls._mistake(error, given) for error in invalid.errors()]
            ) from None

    @classmethod
    def _mistake(cls, error: Any, given: Mapping[str, str]) -> Mistake:
        field = str(error["loc"][0])
        if error["type"] == "missing":
            return Mistake(field.upper(), None, "it is required", example(field.upper()))
        about = cls.model_fields[field]
        secret = about.annotation == SecretStr | None
        advice = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
        default = None if about.is_required() else text(about.default)
        shown = example(field.upper()) or default or None
        return Mistake(field.upper(), "***" if secret else given[field], advice, shown)

    def export(self, environ: MutableMapping[str, str] | None = None) -> list[Default]:
        """Write what the SDK and Hugging Face's libraries read from the environment themselves.

        The hub's cache lies where the platform puts its own cached models, if there is a volume,
        or if it is said where else to put it.

        Returns:
            What an operator would have had to set for something else.
        """
        values = dict(EXPORTS)
        if self.hf_token:
            values["HF_TOKEN"] = self.hf_token.get_secret_value()
        if self.base_path.is_dir() or "base_path" in self.model_fields_set:
            values["HF_HOME"] = str(self.base_path / "huggingface-cache")
        written = export(values) if environ is None else export(values, environ)
        return [Default(name, written[name], why) for name, why in _WHY.items() if name in written]
