"""The worker's own settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from worker.settings.environment import EXPORTS, Default, export, paths_in
from worker.settings.examples import example
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.values import boolean, items, text, unfit

# Exported variables that an operator may wonder about, with the reason of each value.
_REASONS = {
    "RUNPOD_LOG_LEVEL": "the SDK's own DEBUG prints every answer",
    "HF_HOME": "in BASE_PATH",
}


def _check_model(model: str) -> str:
    if reason := unfit(model):
        raise ValueError(reason)
    return model


ModelName = Annotated[str, AfterValidator(_check_model)]
Flag = Annotated[bool, BeforeValidator(boolean)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _read_jobs(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(str(value).lower())
    except ValidationError:
        # Pydantic has a complaint for each alternative.
        raise ValueError("a whole number of at least 1, or auto") from None


# Routes that tell callers about the worker, and that no client needs.
TELLING = ("/chat", "/metrics", "/openapi.json", "/version")


def _read_items(value: Any) -> tuple[Any, ...]:
    return tuple(items(value) if isinstance(value, str) else value)


Names = Annotated[tuple[str, ...], BeforeValidator(_read_items)]


def _read_routes(value: Any) -> tuple[str, ...]:
    routes = _read_items(value)
    if unknown := [route for route in routes if route not in TELLING]:
        raise ValueError(f"{unknown[0]!r} can't be turned off, only {', '.join(TELLING)}")
    return routes


Routes = Annotated[tuple[str, ...], BeforeValidator(_read_routes)]


def _check_directory(path: str) -> str:
    path = path.removesuffix("/")
    if any(not part or part.startswith(".") for part in path.split("/")):
        raise ValueError("a directory's path from FILES_PATH, without hidden parts")
    return path


Directory = Annotated[str, AfterValidator(_check_directory)]
Directories = Annotated[tuple[Directory, ...], BeforeValidator(_read_items)]
# Where adapters are trained.
Training = Annotated[Literal["beside", "exclusive", "off"], BeforeValidator(_lower)]
Jobs = Annotated[Count | Literal["auto"], WrapValidator(_read_jobs)]


class Settings(BaseModel):
    """The worker's own settings: field ``x`` is the environment variable ``X``.

    vLLM's options are not listed here, since the installed vLLM's parser knows them
    (``worker.engine.options``). ``builder/table`` describes all settings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    base_path: Path = Path("/runpod-volume")
    compile_cache: Flag = True
    fast_load: Flag = False
    hf_token: SecretStr | None = None
    serve_api_key: SecretStr | None = None
    serve_max_connections: Count = 1_000
    serve_timeout_s: Size = 30
    allowed_origins: Names = ()
    files_path: Path | None = None
    files_input_paths: Directories = ("inbox", "uploads")
    files_output_path: Directory = "out"
    files_max_mb: Count = 512
    files_max_total_mb: Count = 20_000
    files_retention_days: Amount = 30
    batch_api_key: SecretStr | None = None
    batch_concurrency: Jobs = "auto"
    batch_max_requests: Count = 50_000
    # Unset: beside the engine on a CPU, off on a GPU, whose memory the engine takes.
    fine_tune: Training | None = None
    fine_tune_max_length: Annotated[int, Field(ge=2)] = 4096
    wandb_api_key: SecretStr | None = None
    execution_timeout_s: Size = 600
    # Set by the platform: the endpoint that this worker belongs to, where jobs are sent to it, and
    # its network volume.
    runpod_endpoint_id: str | None = None
    runpod_endpoint_base_url: str = "https://api.runpod.ai/v2"
    runpod_volume_id: str | None = None
    max_concurrency: Jobs = 300
    shutdown_grace_s: Amount = 25
    allowed_xargs: Names = ()
    max_input_mb: Size = 20
    max_input_values: Count = 100_000
    max_input_depth: Count = 64
    max_input_items: Count = 10_000
    min_model_len: Count = 1024
    max_engine_restarts: Annotated[int, Field(ge=0)] = 2
    engine_hang_s: Amount = 8
    default_batch_size: Count = 50
    default_min_batch_size: Amount = 1
    default_batch_size_growth_factor: Amount = 3
    default_batch_max_delay_ms: Amount = 100
    default_max_tokens: Count = 16
    raw_openai_output: Flag = True
    strict_requests: Flag = False
    structured_compile_s: Amount = 30
    structured_max_repetitions: Count = 10_000
    structured_max_nesting: Count = 2
    system_prompt: str | None = None
    disabled_routes: Routes = ()
    allow_unload_lora_adapter: Flag = False
    allow_remote_media: Flag = True
    media_max_mb: Count = 20
    media_max_parts: Count = 16
    media_fetch_timeout_s: Size = 10
    disable_log_stats: Flag = True
    disable_log_requests: Flag = True

    # Only checked here. They are read elsewhere, from the text of all settings or the environment:
    # the first two by worker.failed_start and worker.process.stalls, when others are wrong; the
    # models by worker.engine.start.needs and vLLM's parser, the format by handler.py, the other two
    # by worker.settings.sources.
    answer_failed_start: Flag = True
    start_stall_s: Amount = 900
    model_name: ModelName
    embedding_model_name: ModelName | None = None
    log_format: Literal["text", "json"] = "text"
    vllm_config_file: Path | None = None
    vllm_extra_args: str | None = None

    _paths: tuple[Path, ...] = PrivateAttr(())

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the worker's settings; a blank value counts as unset.

        Raises:
            SettingsError: all mistakes at once.
        """
        texts = {name: environ.get(name.upper(), "").strip() for name in cls.model_fields}
        try:
            settings = cls.model_validate({name: value for name, value in texts.items() if value})
        except ValidationError as invalid:
            mistakes = [cls._mistake(error, texts) for error in invalid.errors()]
            raise SettingsError(mistakes) from None
        settings._paths = paths_in(environ)
        return settings

    @property
    def paths(self) -> tuple[Path, ...]:
        """All paths that the values of variables name: models, caches, adapters and others."""
        return self._paths

    @classmethod
    def _mistake(cls, error: Any, texts: Mapping[str, str]) -> Mistake:
        name = str(error["loc"][0])
        if error["type"] == "missing":
            return Mistake(name.upper(), None, "it is required", example(name.upper()))
        field = cls.model_fields[name]
        secret = field.annotation == SecretStr | None
        advice = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
        default = None if field.is_required() else text(field.default)
        accepted = example(name.upper()) or default or None
        return Mistake(name.upper(), "***" if secret else texts[name], advice, accepted)

    def secrets(self) -> list[str]:
        """Return the values of all settings that are secrets."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value.get_secret_value() for value in values if isinstance(value, SecretStr)]

    def idle(self) -> dict[str, str]:
        """Return the reasons why settings have no effect next to others, by name."""
        constant = f"every chunk holds DEFAULT_BATCH_SIZE={self.default_batch_size} tokens"
        if self.default_min_batch_size >= self.default_batch_size:
            reason = f"it is not below DEFAULT_BATCH_SIZE, so {constant}"
            return {"DEFAULT_MIN_BATCH_SIZE": reason}
        if 0 < self.default_batch_size_growth_factor <= 1:
            reason = f"it is not above 1, so {constant}"
            return {"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": reason}
        return {}

    def export(self) -> list[Default]:
        """Write variables that the SDK and Hugging Face's libraries read, where they are unset.

        The hub's cache is in BASE_PATH, where the platform puts its own cached models, if that
        directory exists or is set. Return the values that an operator may want to know of.
        """
        values = dict(EXPORTS)
        if self.hf_token:
            values["HF_TOKEN"] = self.hf_token.get_secret_value()
        if self.base_path.is_dir() or "base_path" in self.model_fields_set:
            values["HF_HOME"] = str(self.base_path / "huggingface-cache")
        written = export(values)
        return [
            Default(name, written[name], reason)
            for name, reason in _REASONS.items()
            if name in written
        ]
