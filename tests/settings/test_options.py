"""Tests of every option of the installed vLLM as a variable, and of the artifacts in settings."""

import functools
import json
from pathlib import Path

import psutil
import pytest
import vllm.envs
from catalogue import GPU, Catalogue
from support.releases import needs_pinned_vllm
from support.settings import read_settings, start_on
from table import LIBRARIES, ROWS, Row

from worker.engine.machine import Machine
from worker.engine.options import INEFFECTIVE_OPTIONS, PREREQUISITES, Options
from worker.engine.start import steps
from worker.engine.start.artifacts import artifacts_in_arguments, artifacts_in_settings
from worker.engine.start.configuring import configure_engine
from worker.settings import Settings
from worker.settings.names import LIBRARY_VARIABLES, OPTION_BY_SETTING
from worker.settings.sources import gather_settings
from worker.store import Artifact

# Options that accept any text: names, paths, and values that vLLM has no list of. For an option
# that
# is new here, check whether the worker can refuse a wrong value before vLLM does.
ANY_TEXT = set(
    """
    ALLOWED_LOCAL_MEDIA_PATH CODE_REVISION COHERE_FORMAT DEVICE_IDS
    DISABLE_ACCESS_LOG_FOR_ENDPOINTS
    DOWNLOAD_DIR FINGERPRINT_VALUE IO_PROCESSOR_PLUGIN
    LOG_CONFIG_FILE MM_ENCODER_FP8_SCALE_PATH MM_ENCODER_FP8_SCALE_SAVE_PATH MODEL
    OTLP_TRACES_ENDPOINT RESPONSE_ROLE REVISION SCHEDULER_CLS
    SHOW_HIDDEN_METRICS_FOR_VERSION SPEC_MODEL TOKENIZER_REVISION
    TOOL_SERVER WORKER_CLS WORKER_EXTENSION_CLS
    """.split()
)

# Settings that an option requires.
REQUIRED_SETTINGS = {
    "DATA_PARALLEL_MULTI_PORT_EXTERNAL_LB": {
        "DATA_PARALLEL_SIZE": "2",
        "DATA_PARALLEL_SIZE_LOCAL": "2",
    },
    "ENABLE_AUTO_TOOL_CHOICE": {"TOOL_CALL_PARSER": "hermes"},
    "ENABLE_LOG_OUTPUTS": {"ENABLE_LOG_REQUESTS": "1"},
    "LORA_MODULES": {"ENABLE_LORA": "1"},
}

MACHINE = Machine(cpu=False, gpus=(GPU,) * 8)
CATALOGUE = Catalogue(MACHINE)


def example_values(name: str) -> set[str]:
    """Return the values of an option in messages, forms and pages."""
    option = CATALOGUE.options[name]
    usual = __file__ if name.endswith("_PLUGIN") else {"json": "{}"}.get(option.kind, "name")
    return {value for value in (option.default, option.example) if value} or {usual}


@functools.cache
def refused_value(name: str) -> str | None:
    return CATALOGUE.find_refused_value(name)


def test_every_option_accepts_its_default_and_its_example() -> None:
    mistakes_by_setting = {
        f"{name}={value}": CATALOGUE.find_mistakes(name, value, **REQUIRED_SETTINGS.get(name, {}))
        for name in CATALOGUE.options.names
        for value in example_values(name)
    }
    assert {
        setting: mistakes for setting, mistakes in mistakes_by_setting.items() if mistakes
    } == {}


def test_a_refusal_names_its_option() -> None:
    mistakes_by_setting = {
        f"{name}={bad}": CATALOGUE.find_mistakes(name, bad)
        for name in CATALOGUE.options.names
        if (bad := refused_value(name)) is not None
    }
    unnamed = [
        setting
        for setting, mistakes in mistakes_by_setting.items()
        if not any(setting.split("=")[0] in mistake for mistake in mistakes)
    ]
    assert unnamed == []


@needs_pinned_vllm
def test_the_options_that_accept_any_value_are_known() -> None:
    found = {name for name in CATALOGUE.options.names if refused_value(name) is None}
    assert found == ANY_TEXT, (
        f"new: {sorted(found - ANY_TEXT)}, no more: {sorted(ANY_TEXT - found)}"
    )


@needs_pinned_vllm
def test_every_row_of_the_table_is_a_known_variable() -> None:
    own = {name.upper() for name in Settings.model_fields}
    read = own | OPTION_BY_SETTING.keys() | CATALOGUE.options.names
    read |= LIBRARY_VARIABLES | set(vllm.envs.environment_variables)
    assert {row.name for row in ROWS} - read == set()


EXAMPLES = [row for row in ROWS if row.example and row.section != LIBRARIES]


@needs_pinned_vllm
@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row.name)
def test_an_example_of_the_table_is_accepted_and_has_an_effect(row: Row, tmp_path: Path) -> None:
    needed = (
        {PREREQUISITES[row.name]: "1"}
        if row.name in PREREQUISITES
        else REQUIRED_SETTINGS.get(row.name, {})
    )
    value = row.example
    if row.name == "VLLM_CONFIG_FILE":
        value = str(tmp_path / "settings.yaml")
        Path(value).write_text("seed: 1")
    result = read_settings({"MODEL_NAME": "org/model", **needed, row.name: value}, MACHINE)
    assert result.warnings == () or row.name.lower() in INEFFECTIVE_OPTIONS


# The artifacts in the settings must be those in vLLM's arguments:


MISSING_FILE = Path("/no such file")
ADAPTERS = [{"name": "a", "path": "org/a"}, {"name": "b", "path": "org/b", "base_model_name": "x"}]
DRAFT = {"model": "org/draft", "revision": "v3", "num_speculative_tokens": 2}

ENVIRONS: list[dict[str, str]] = [
    {},
    {"MODEL_REVISION": "v1", "LOAD_FORMAT": "safetensors"},
    {"TOKENIZER_NAME": "org/tokenizer", "TOKENIZER_REVISION": "v2", "MODEL_REVISION": "v1"},
    {"TOKENIZER_REVISION": "v2"},
    {"TOKENIZER_NAME": "org/model", "TOKENIZER_REVISION": "v1", "MODEL_REVISION": "v1"},
    {"TOKENIZER_REVISION": "v2", "SKIP_TOKENIZER_INIT": "1"},
    {"DOWNLOAD_DIR": "/downloads"},
    {"TRUST_REMOTE_CODE": "true"},
    {"ENABLE_LORA": "1", "LORA_MODULES": json.dumps(ADAPTERS)},
    {"ENABLE_LORA": "1", "LORA_MODULES": "a=org/a b=org/b"},
    {"ENABLE_LORA": "1", "LORA_MODULES": "a=/adapters/a"},
    {"SPECULATIVE_CONFIG": json.dumps(DRAFT), "MODEL_REVISION": "v1"},
    {"SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 2}'},
    {"SPECULATIVE_MODEL": "org/draft", "NUM_SPECULATIVE_TOKENS": "2"},
    {"VLLM_EXTRA_ARGS": "--model-impl transformers"},
    {"EMBEDDING_MODEL_NAME": "org/embedder", "EMBEDDING_MODEL_REVISION": "v4"},
    {"EMBEDDING_MODEL_NAME": "org/embedder", "EMBEDDING_TOKENIZER_NAME": "org/tokenizer"},
    {"MODEL_REVISION": "v1", "TRUST_REMOTE_CODE": "1", "EMBEDDING_MODEL_NAME": "org/model"},
]


def find_artifacts(environ: dict[str, str]) -> tuple[list[Artifact], list[Artifact]]:
    result = read_settings({"MODEL_NAME": "org/model", **environ})
    from_arguments = [
        artifact for engine in result.engines for artifact in artifacts_in_arguments(engine)
    ]
    return artifacts_in_settings(
        gather_settings({"MODEL_NAME": "org/model", **environ}, MISSING_FILE)
    ), from_arguments


@pytest.mark.parametrize("environ", ENVIRONS, ids=str)
def test_the_settings_name_the_artifacts_that_vllm_needs(environ: dict[str, str]) -> None:
    from_settings, from_arguments = find_artifacts(environ)
    assert from_settings == from_arguments
    assert [one.setting for one in from_settings] == [one.setting for one in from_arguments]


def test_weights_on_a_network_disk_are_read_ahead(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "self" / "mounts"
    mounts.parent.mkdir()
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nvolume {demo_model.resolve()} fuse.mfs rw 0 0\n")
    known = Options()
    parsed = known.parse_engine_settings({"MODEL": str(demo_model)})
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(steps, "page_cache_capacity", lambda: 1 << 40)
    changed = configure_engine(parsed.arguments, start_on(known.machine))
    assert changed.config.load_config.safetensors_load_strategy == "prefetch"
    assert "SAFETENSORS_LOAD_STRATEGY" in [default.name for default in changed.defaults]
