"""Tests of warnings for settings without effect, alone and together with mistakes."""

from pathlib import Path

import pytest
from settings.conftest import Read, Refuse

EMBEDDER = {"EMBEDDING_MODEL_NAME": "org/e"}
CHUNKS = {"DEFAULT_BATCH_SIZE": "5", "DEFAULT_MIN_BATCH_SIZE": "5"}


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"ENABLE_LORA": "Off", "MAX_CPU_LORAS": "4"}, "MAX_CPU_LORAS", "it needs ENABLE_LORA"),
        ({"TOOL_CALL_PARSER": "hermes"}, "TOOL_CALL_PARSER", "it needs ENABLE_AUTO_TOOL_CHOICE"),
        ({"NNODES": "2"}, "NNODES", "a worker runs on one machine"),
        ({"SSL_KEYFILE": "x"}, "SSL_KEYFILE", "vLLM's server runs inside the worker"),
        ({"SWAP_SPACE": "4"}, "SWAP_SPACE", "vLLM has had no such option since 0.18; "),
        (CHUNKS, "DEFAULT_MIN_BATCH_SIZE", "it is not below DEFAULT_BATCH_SIZE"),
        ({(growth := "DEFAULT_BATCH_SIZE_GROWTH_FACTOR"): "1"}, growth, "it is not above 1"),
        ({"EMBEDDING_SWAP_SPACE": "4", **EMBEDDER}, "EMBEDDING_SWAP_SPACE", "vLLM has had no such"),
        ({"EMBEDDING_MAX_CONCURRENCY": "4", **EMBEDDER}, "EMBEDDING_MAX_CONCURRENCY", ""),
        ({"EMBEDDING_MAX_LORAS": "4", **EMBEDDER}, "EMBEDDING_MAX_LORAS", "it needs EMBEDDING_EN"),
    ],
    ids=str,
)
def test_settings_without_effect_warn(
    settings: dict[str, str], name: str, reason: str, read: Read
) -> None:
    (warning,) = read(**settings).warnings
    assert warning.startswith(f"{name} has no effect: {reason}")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"HF_TOKEN": '"hf_x"'}, "HF_TOKEN is in quotes, which are part of the value"),
        (
            {"VLLM_EXTRA_ARGS": "--disable-log-stats"},
            "--disable-log-stats in VLLM_EXTRA_ARGS has no effect: set DISABLE_LOG_STATS",
        ),
        ({"EMBEDDING_SEED": "1"}, "EMBEDDING_SEED has no effect without EMBEDDING_MODEL_NAME"),
    ],
    ids=str,
)
def test_other_warnings(settings: dict[str, str], warning: str, read: Read) -> None:
    assert read(**settings).warnings == (warning,)


# Variables that the base image, the platform and libraries set.
FOREIGN_VARIABLES = """
    CUDA_VERSION HF_HUB_ENABLE_HF_TRANSFER HOME HOSTNAME LANG MKL_NUM_THREADS NCCL_DEBUG
    NVIDIA_VISIBLE_DEVICES OTEL_EXPORTER_OTLP_TIMEOUT OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
    OTEL_EXPORTER_OTLP_METRICS_PROTOCOL OTEL_RESOURCE_ATTRIBUTES OTEL_SERVICE_NAME PATH
    PIP_NO_CACHE_DIR PYTORCH_CUDA_ALLOC_CONF REQUESTS_CA_BUNDLE
    RUNPOD_AI_API_KEY RUNPOD_ENDPOINT_ID RUNPOD_GPU_COUNT RUNPOD_MEM_GB RUNPOD_NETWORK_VOLUME_ID
    RUNPOD_POD_ID RUNPOD_REALTIME_PORT RUNPOD_VOLUME_ID RUNPOD_WEBHOOK_GET_JOB SSL_CERT_FILE
    TOKENIZERS_PARALLELISM TORCH_CUDA_ARCH_LIST UV_LINK_MODE VLLM_USAGE_SOURCE VIRTUAL_ENV
"""


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            dict.fromkeys(FOREIGN_VARIABLES.split(), "1"), id="variables that are no settings"
        ),
        {"DEFAULT_BATCH_SIZE": "5", "DEFAULT_MIN_BATCH_SIZE": "4.9"},
        {"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "0"},  # 0 selects the default
        {"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "1.1"},
        {"TOOL_CALL_PARSER": "hermes", "VLLM_EXTRA_ARGS": "--enable-auto-tool-choice"},
    ],
    ids=str,
)
def test_settings_with_an_effect_and_foreign_variables_do_not_warn(
    settings: dict[str, str], read: Read
) -> None:
    assert read(**settings).warnings == ()


@pytest.mark.parametrize(
    ("name", "value"), [("DISABLE_LOG_REQUESTS", "0"), ("ENABLE_LOG_REQUESTS", "1")]
)
def test_a_setting_of_an_embedder_has_an_effect_or_warns(name: str, value: str, read: Read) -> None:
    result = read(**EMBEDDER, **{f"EMBEDDING_{name}": value})
    _, embedder = result.engines
    assert embedder.vllm_args.enable_log_requests is (result.warnings == ())
    assert result.main_arguments.vllm_args.enable_log_requests is False


@pytest.mark.parametrize(
    ("mistake", "names_with_warning"),
    [
        ({"SEED": "x"}, ["SWAP_SPACE"]),
        # vLLM's options are checked together even if there is a mistake in the worker's own
        # settings.
        ({"MODEL_NAME": ""}, ["MAX_LORAS", "SWAP_SPACE"]),
        # An embedder with an invalid name still counts as an embedder.
        ({"EMBEDDING_MODEL": "a b", "EMBEDDING_SEED": "1"}, ["MAX_LORAS", "SWAP_SPACE"]),
    ],
    ids=str,
)
def test_settings_without_effect_are_reported_with_the_mistakes(
    mistake: dict[str, str], names_with_warning: list[str], refuse: Refuse
) -> None:
    error = refuse(**mistake, SWAP_SPACE="4", MAX_LORAS="4")
    assert [
        warning.partition(" has no effect: ")[0] for warning in error.warnings
    ] == names_with_warning
    assert "\n  ".join(["Warnings:", *error.warnings]) in error.message


def test_a_config_file_may_contain_removed_options_and_options_without_effect(
    tmp_path: Path, read: Read
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("host: 127.0.0.1\nport: 6379\nuvicorn-log-level: info\nswap-space: 4")
    warnings = read(VLLM_CONFIG_FILE=str(file)).warnings
    names = [warning.split()[0] for warning in warnings]
    assert names == ["HOST", "PORT", "SWAP_SPACE", "UVICORN_LOG_LEVEL"]


def test_accepted_settings_are_sorted_and_spelled_as_by_the_operator(read: Read) -> None:
    settings = {
        "TOKENIZER_NAME": "org/words",
        "MODEL_REVISION": "v2",
        "SEED": "1",
        "MIN_BATCH_SIZE": "2",
        "EMBEDDING_MODEL_NAME": "org/e",
        "EMBEDDING_REVISION": "v3",
    }
    accepted = read(**settings, PATH="/bin").accepted_settings
    assert accepted == tuple(sorted({*settings, "MODEL_NAME"}))
