"""The worker's own settings: the only reader of the environment, and its only writer."""

import difflib
import os
from collections.abc import Iterable, Mapping, MutableMapping
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

# Settings that hand their value to an option of vLLM under another name.
ALIASES = {
    "MODEL_NAME": "MODEL",
    "MODEL_REVISION": "REVISION",
    "TOKENIZER_NAME": "TOKENIZER",
    "CUSTOM_CHAT_TEMPLATE": "CHAT_TEMPLATE",
    "OPENAI_RESPONSE_ROLE": "RESPONSE_ROLE",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "SERVED_MODEL_NAME",
}

# Accepted without effect: what each once did, and what does it today.
REMOVED = {
    "SWAP_SPACE": "vLLM swaps no blocks to the CPU any more; CPU_OFFLOAD_GB offloads weights",
    "MAX_CONTEXT_LEN_TO_CAPTURE": "vLLM captures CUDA graphs by batch size now; "
    "MAX_CUDAGRAPH_CAPTURE_SIZE bounds it",
    "MAX_SEQ_LEN_TO_CAPTURE": "vLLM captures CUDA graphs by batch size now; "
    "MAX_CUDAGRAPH_CAPTURE_SIZE bounds it",
    "DISABLE_ASYNC_OUTPUT_PROC": "vLLM always processes outputs while the next step runs; "
    "ASYNC_SCHEDULING=0 turns off what is left of it",
}

# What stands before the names of an embedder's settings.
EMBEDDER = "EMBEDDING_"

# For libraries that read the environment themselves, where the operator left these unset.
EXPORTS = {
    # The SDK's own default, DEBUG, prints every chunk of every answer.
    "RUNPOD_LOG_LEVEL": "INFO",
    # Its GPU checks would create a CUDA context beside vLLM's, and its network check needs the
    # internet; the worker registers a check of its own instead: a generated token.
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    # Standard output is for what the worker says: the yields of a local run.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Fetching usage statistics' destination would delay the start of an offline worker.
    "VLLM_NO_USAGE_STATS": "1",
}

# A name at least this close to a known one is a misspelling (difflib's ratio, 0 to 1).
NEAR_MISS = 0.86

_WORDS = {"0": False, "false": False, "no": False, "off": False}
_WORDS |= {"1": True, "true": True, "yes": True, "on": True}


def boolean(value: Any) -> Any:
    """Read a boolean as operators write it; pydantic alone would also take t, y and f."""
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).strip().lower()]
    except KeyError:
        raise ValueError("a boolean is one of 0/1, true/false, yes/no, on/off") from None


def _existing(model: str) -> str:
    """Tell a path that leads nowhere, which vLLM would take for a repository with odd letters."""
    if model.startswith(("/", "./", "../")) and not Path(model).is_dir():
        raise ValueError("there is no such directory; a repository is written as owner/name")
    return model


Model = Annotated[str, AfterValidator(_existing)]
Flag = Annotated[bool, BeforeValidator(boolean)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """What the worker itself is told: field ``x`` is the environment variable ``X``.

    vLLM's own options are not listed here, since the installed vLLM's parser knows them
    (``worker.engine.options``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model_name: Model
    embedding_model_name: Model | None = None
    base_path: Path = Path("/runpod-volume")
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

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
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
            advice = f"it is required, for example {field.upper()}=Qwen/Qwen3-0.6B"
            return Mistake(field.upper(), None, advice)
        secret = cls.model_fields[field].annotation == SecretStr | None
        advice = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
        return Mistake(field.upper(), "***" if secret else given[field], advice)

    def export(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Write what the SDK and Hugging Face's libraries read from the environment themselves.

        The hub's cache lies where the platform puts its own cached models, if there is a volume.
        """
        export(EXPORTS, environ)
        if self.base_path.is_dir():
            export({"HF_HOME": str(self.base_path / "huggingface-cache")}, environ)


def process_environ() -> Mapping[str, str]:
    """Return the environment that the operator set, and ``export`` completed."""
    return os.environ


def export(values: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Write variables that the operator left unset, or blank."""
    for name, value in values.items():
        if not environ.get(name, "").strip():
            environ[name] = value


def overwrite(name: str, value: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Write a variable whatever it holds: for one that vLLM itself changed under us."""
    environ[name] = value


def is_set(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the operator, or a library, has set a variable that is no setting."""
    return bool(environ.get(name, "").strip())


def engine_environ(environ: Mapping[str, str] = os.environ, prefix: str = "") -> dict[str, str]:
    """Select what may be an option of vLLM's, under the option's upper-case name.

    Blank values count as unset, and a name of ours wins over the option it stands for.

    Args:
        environ: the variables that are set.
        prefix: of the variables to look at, which the selected ones are without.
    """
    environ = {
        name.removeprefix(prefix): value
        for name, value in environ.items()
        if name.startswith(prefix)
    }
    own = {name.upper() for name in Settings.model_fields} | ALIASES.keys()
    options = {name: value for name, value in environ.items() if name not in own}
    options |= {
        option: value
        for name, option in ALIASES.items()
        if (value := environ.get(name, "").strip())
    }
    return {name: value.strip() for name, value in options.items() if value.strip()}


def platform_around(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the SDK will find jobs to take, or a port to serve, in the environment."""
    realtime = environ.get("RUNPOD_REALTIME_PORT", "0") != "0"
    return "RUNPOD_WEBHOOK_GET_JOB" in environ or realtime


def unheeded(known: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Say of each variable that has no effect, but was meant to have one, what to write instead.

    Args:
        known: the names of vLLM's options, upper case.
        environ: the variables that are set.
    """
    options = ALIASES.keys() | set(known)
    embedders = {EMBEDDER + name for name in options}
    names = {name.upper() for name in Settings.model_fields} | options | embedders
    given = {name for name, value in environ.items() if value.strip()}
    warnings = [f"{name} has no effect: {REMOVED[name]}" for name in REMOVED if name in given]
    if f"{EMBEDDER}MODEL_NAME" not in given:
        idle = sorted(embedders & given)
        warnings += [f"{name} has no effect without {EMBEDDER}MODEL_NAME" for name in idle]
    for name in sorted(given - names - REMOVED.keys()):
        near = difflib.get_close_matches(name, names, n=1, cutoff=NEAR_MISS)
        warnings += [f"{name} is not a setting: did you mean {right}?" for right in near]
    return warnings
