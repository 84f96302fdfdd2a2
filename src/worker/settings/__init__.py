"""The worker's own settings: their types, defaults and validation.

``sources`` merges the environment and the files into ``RawSettings``, which are strings by name;
``names`` knows the other names of settings, and those that have no effect any more, with the record
in ``history``. ``Settings``, here, validates those that are the worker's own; the others are vLLM's
options (``worker.engine.options``). ``values`` converts and redacts values. All errors are
``mistakes``, which are reported together, with the values of ``examples``. Only ``environment``
accesses the environment of the process. ``routes`` has the names for DISABLED_ROUTES.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

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

from worker.settings import routes
from worker.settings.environment import (
    LIBRARY_DEFAULTS,
    ChosenDefault,
    find_paths_in_variables,
    set_unset_variables,
)
from worker.settings.examples import example_value
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.values import (
    format_value,
    model_name_problem,
    parse_boolean,
    parse_headers,
    parse_list,
    redact_url_credentials,
)

# Exported variables that are logged for the operator, with the reason for each value.
_LOGGED_REASONS = {
    "RUNPOD_LOG_LEVEL": "the SDK's own DEBUG prints every answer",
    "HF_HOME": "in BASE_PATH",
}


def _validate_model_name(model: str) -> str:
    if reason := model_name_problem(model):
        raise ValueError(reason)
    return model


ModelName = Annotated[str, AfterValidator(_validate_model_name)]
Boolean = Annotated[bool, BeforeValidator(parse_boolean)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _lowercase(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _parse_concurrency(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(str(value).lower())
    except ValidationError:
        # Pydantic would report an error for each alternative of the union.
        raise ValueError("a whole number of at least 1, or auto") from None


def _parse_items(value: Any) -> tuple[Any, ...]:
    return tuple(parse_list(value) if isinstance(value, str) else value)


NameList = Annotated[tuple[str, ...], BeforeValidator(_parse_items)]


def _parse_routes(value: Any) -> tuple[str, ...]:
    names = _parse_items(value)
    routes.find_disabled(names)
    return names


RouteList = Annotated[tuple[str, ...], BeforeValidator(_parse_routes)]


def _validate_relative_path(path: str) -> str:
    path = path.removesuffix("/")
    if any(not part or part.startswith(".") for part in path.split("/")):
        raise ValueError("the path of a directory in FILES_PATH, without hidden parts")
    return path


Directory = Annotated[str, AfterValidator(_validate_relative_path)]
DirectoryList = Annotated[tuple[Directory, ...], BeforeValidator(_parse_items)]
# How adapters are trained: next to the running engine, while it is suspended, or not at all.
FineTuneMode = Annotated[Literal["beside", "exclusive", "off"], BeforeValidator(_lowercase)]
# Whether each event of a stream has the tokens of a chunk, or one token.
StreamEvents = Annotated[Literal["chunk", "token"], BeforeValidator(_lowercase)]
Concurrency = Annotated[PositiveInt | Literal["auto"], WrapValidator(_parse_concurrency)]


def _validate_address(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address that begins with http:// or https://")
    # The environment of child processes and messages about failures show the address.
    if "@" in address:
        advice = "OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20<user:password in base64>"
        raise ValueError(f"an address without user and password: set {advice}")
    return address


def _validate_headers(headers: SecretStr | None) -> SecretStr | None:
    parse_headers(headers.get_secret_value() if headers else "")
    return headers


HttpAddress = Annotated[str, AfterValidator(_validate_address)]
SecretHeaders = Annotated[SecretStr | None, AfterValidator(_validate_headers)]
OtlpProtocol = Annotated[Literal["http/protobuf", "grpc"], BeforeValidator(_lowercase)]


class Settings(BaseModel):
    """The worker's own settings: field ``x`` is the environment variable ``X``.

    vLLM's options are not listed here because the parser of the installed vLLM defines them
    (``worker.engine.options``). ``builder/table`` describes all settings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    base_path: Path = Path("/runpod-volume")
    compile_cache: Boolean = True
    fast_load: Boolean = False
    hf_token: SecretStr | None = None
    serve_api_key: SecretStr | None = None
    serve_max_connections: PositiveInt = 1_000
    serve_timeout_s: PositiveFloat = 30
    allowed_origins: NameList = ()
    files_path: Path | None = None
    files_input_paths: DirectoryList = ("inbox", "uploads")
    files_output_path: Directory = "out"
    files_max_mb: PositiveInt = 512
    files_max_total_mb: PositiveInt = 20_000
    files_max_count: PositiveInt = 10_000
    files_retention_days: NonNegativeFloat = 30
    batch_api_key: SecretStr | None = None
    batch_concurrency: Concurrency = "auto"
    batch_max_requests: PositiveInt = 50_000
    # By default "beside" on a CPU, and "off" on a GPU, whose memory the engine uses.
    fine_tune: FineTuneMode | None = None
    fine_tune_max_length: Annotated[int, Field(ge=2)] = 4096
    wandb_api_key: SecretStr | None = None
    receipts: Boolean = False
    receipts_retention_days: NonNegativeFloat = 90
    gpu_price_per_second: NonNegativeFloat = 0
    execution_timeout_s: PositiveFloat = 600
    # The platform sets the worker's id, its endpoint, the endpoints' base URL, and the network
    # volume with its data center.
    runpod_pod_id: str | None = None
    runpod_endpoint_id: str | None = None
    runpod_endpoint_base_url: str = "https://api.runpod.ai/v2"
    runpod_volume_id: str | None = None
    runpod_dc_id: str | None = None
    max_concurrency: Concurrency = "auto"
    shutdown_grace_s: NonNegativeFloat = 25
    allowed_xargs: NameList = ()
    max_input_mb: PositiveFloat = 20
    min_model_len: PositiveInt = 1024
    max_engine_restarts: Annotated[int, Field(ge=0)] = 2
    engine_hang_s: NonNegativeFloat = 8
    default_batch_size: PositiveInt = 50
    default_min_batch_size: NonNegativeFloat = 1
    default_batch_size_growth_factor: NonNegativeFloat = 3
    default_batch_max_delay_ms: NonNegativeFloat = 100
    default_max_tokens: PositiveInt = 16
    max_output_tokens: PositiveInt | None = None
    stream_events: StreamEvents = "chunk"
    raw_openai_output: Boolean = True
    stream_whole_answers: Boolean = False
    strict_requests: Boolean = False
    system_prompt: str | None = None
    disabled_routes: RouteList = ()
    allow_unload_lora_adapter: Boolean = False
    allow_remote_media: Boolean = True
    media_max_mb: PositiveInt = 20
    media_max_parts: PositiveInt = 16
    media_fetch_timeout_s: PositiveFloat = 10
    # OpenTelemetry's names.
    otel_exporter_otlp_endpoint: HttpAddress | None = None
    otel_exporter_otlp_headers: SecretHeaders = None
    otel_exporter_otlp_protocol: OtlpProtocol = "http/protobuf"
    disable_log_stats: Boolean = True
    disable_log_requests: Boolean = True

    # These settings are only validated here. Other code reads them from the raw values or from the
    # environment: ``worker.failed_start`` reads the first even if other settings are wrong,
    # ``worker.engine.start.artifacts`` and vLLM's parser read the models, ``handler.py`` reads the
    # format, and ``worker.settings.sources`` reads the last two.
    answer_failed_start: Boolean = True
    model_name: ModelName
    embedding_model_name: ModelName | None = None
    log_format: Literal["text", "json"] = "text"
    vllm_config_file: Path | None = None
    vllm_extra_args: str | None = None

    _paths: tuple[Path, ...] = PrivateAttr(())

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; blank counts as unset. One ``SettingsError`` lists all mistakes."""
        values = {name: environ.get(name.upper(), "").strip() for name in cls.model_fields}
        try:
            settings = cls.model_validate({name: value for name, value in values.items() if value})
        except ValidationError as invalid:
            mistakes = []
            for error in invalid.errors():
                name, advice = str(error["loc"][0]), str(error["msg"])
                setting, field = name.upper(), cls.model_fields[name]
                accepted = example_value(setting)
                if error["type"] == "missing":
                    mistakes.append(Mistake(setting, None, "it is required", accepted))
                    continue
                for prefix in ("Value error, ", "Input should be "):
                    advice = advice.removeprefix(prefix)
                default = None if field.is_required() else format_value(field.default)
                is_secret = field.annotation == SecretStr | None
                value = "***" if is_secret else redact_url_credentials(values[name])
                mistakes.append(Mistake(setting, value, advice, accepted or default or None))
            raise SettingsError(mistakes) from None
        settings._paths = find_paths_in_variables(environ)
        return settings

    @property
    def paths_in_environ(self) -> tuple[Path, ...]:
        """All paths in the values of environment variables: models, caches, adapters and others."""
        return self._paths

    @property
    def disabled(self) -> frozenset[str]:
        """The disabled routes, such as "GET /v1/files", and kinds of jobs, such as "batch"."""
        return routes.find_disabled(self.disabled_routes)

    @property
    def worker_id(self) -> str:
        """The platform's id of this worker; without a platform, an id of this process."""
        return self.runpod_pod_id or f"{socket.gethostname()}-{os.getpid()}"

    def secret_values(self) -> list[str]:
        values = (getattr(self, name) for name in type(self).model_fields)
        secrets = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        return [*secrets, *self.otlp_headers.values()]

    @property
    def otlp_headers(self) -> dict[str, str]:
        headers = self.otel_exporter_otlp_headers
        return parse_headers(headers.get_secret_value()) if headers else {}

    def ineffective_setting_reasons(self) -> dict[str, str]:
        constant = f"every chunk has DEFAULT_BATCH_SIZE={self.default_batch_size} tokens"
        if self.default_min_batch_size >= self.default_batch_size:
            reason = f"it is not below DEFAULT_BATCH_SIZE, so {constant}"
            return {"DEFAULT_MIN_BATCH_SIZE": reason}
        if 0 < self.default_batch_size_growth_factor <= 1:
            reason = f"it is not above 1, so {constant}"
            return {"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": reason}
        return {}

    def export_library_variables(self) -> list[ChosenDefault]:
        """Set unset environment variables that the SDK and Hugging Face's libraries read.

        The hub's cache is placed in BASE_PATH, where the platform stores its own cached models, if
        that directory exists or the operator has set BASE_PATH. Returns what is worth logging.
        """
        values = dict(LIBRARY_DEFAULTS)
        if self.hf_token:
            values["HF_TOKEN"] = self.hf_token.get_secret_value()
        if self.base_path.is_dir() or "base_path" in self.model_fields_set:
            values["HF_HOME"] = str(self.base_path / "huggingface-cache")
        changed = set_unset_variables(values)
        return [
            ChosenDefault(name, changed[name], reason)
            for name, reason in _LOGGED_REASONS.items()
            if name in changed
        ]
