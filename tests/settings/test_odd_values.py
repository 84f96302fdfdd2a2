"""Unexpected values: reported like any other mistake, without a traceback or a secret."""

from pathlib import Path

import pytest
from support.settings import read_settings

from worker import start
from worker.engine.machine import Gpu, Machine
from worker.settings.mistakes import SettingsError


def refused(*on: Machine, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read_settings({"MODEL_NAME": "org/model", **environ}, *on)
    return caught.value.message


def read(**environ: str) -> start.Start:
    return read_settings({"MODEL_NAME": "org/model", **environ})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPECULATIVE_CONFIG", '{"method": "ngram", "num_speculative_tokens": "four"}'),
        ("COMPILATION_CONFIG", '{"cudagraph_mode": "FULLL"}'),
        ("MAX_NUM_SEQS", "--"),
        ("CUSTOM_CHAT_TEMPLATE", "x" * 300),
        ("MAX_MODEL_LEN", "0"),
        ("LORA_MODULES", "org/sql"),
        ("LORA_MODULES", "a="),
        ("LORA_MODULES", "a=b,a=c"),
        ("TOKENIZER_NAME", "/no/such"),
        ("GENERATION_CONFIG", "/no/such"),
    ],
)
def test_a_nearly_right_value_is_refused_by_the_settings_name(name: str, value: str) -> None:
    lines = refused(ENABLE_LORA="1", **{name: value}).splitlines()[1:]
    assert [line.split()[0] for line in lines] == [name]


def test_pythons_message_about_a_value_is_not_repeated() -> None:
    assert "MAX_NUM_SEQS = '--': a whole number, at least 1, " in refused(MAX_NUM_SEQS="--")


@pytest.mark.parametrize(
    "value",
    [
        '{"method": "ngram", "num_speculative_tokens": "4", "prompt_lookup_max": 4}',
        '{"model": "org/draft", "num_speculative_tokens": 4, "draft_tensor_parallel_size": null}',
    ],
)
def test_values_that_vllms_classes_convert_are_accepted(value: str) -> None:
    assert read(SPECULATIVE_CONFIG=value).arguments.vllm.speculative_config[
        "num_speculative_tokens"
    ]


def test_odd_words_in_the_extra_arguments_are_refused_likewise() -> None:
    for words in ("--max-num-seqs=--", '--compilation-config {"cudagraph_mode":"FULLL"}'):
        assert "VLLM_EXTRA_ARGS = " in refused(VLLM_EXTRA_ARGS=words)
    # An abbreviated flag is unknown: it could mean one that a worker does not accept.
    for words in ("--por 5", "--hel", "--api-ke canary", "--max-model 5"):
        message = refused(VLLM_EXTRA_ARGS=words)
        assert "unrecognized arguments" in message
    message = refused(VLLM_EXTRA_ARGS="--swap-space 4")
    assert "--swap-space: vLLM has had no such option since 0.18" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LORA_MODULES", '{"name":"a","path":"b","key":"canary"}'),
        ("LORA_MODULES", '[{"name":"a","path":"b","key":"canary"}]'),
        ("KV_TRANSFER_CONFIG", "kv_connector=5,password=canary"),
        ("VLLM_EXTRA_ARGS", "--api-key 'sk canary two' --HF-TOKEN canary"),
    ],
)
def test_no_message_repeats_a_secret(name: str, value: str) -> None:
    assert "canary" not in refused(ENABLE_LORA="1", **{name: value})


def test_values_of_unknown_keys_are_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("huggingface-token: canary\nextra: {password: canary}\nhf-home: /x")
    message = refused(VLLM_CONFIG_FILE=str(file))
    assert "canary" not in message
    assert "HF_HOME = '...': " in message
    assert "only the environment can set it" in message


def test_a_config_file_as_vllms_documentation_has_it_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model: org/model\nhost: 127.0.0.1\nport: 6379\nuvicorn-log-level: info")
    result = read_settings({"VLLM_CONFIG_FILE": str(file)})
    assert [warning.split()[0] for warning in result.warnings] == [
        "HOST",
        "PORT",
        "UVICORN_LOG_LEVEL",
    ]


def test_adapters_are_read_in_every_form_that_vllm_knows() -> None:
    for value in (
        "a=org/a b=org/b",
        "a=org/a, b=org/b",
        '[{"name": "a", "path": "org/a"}, "b=org/b"]',
    ):
        adapters = read(ENABLE_LORA="1", LORA_MODULES=value).arguments.vllm.lora_modules
        assert [(adapter.name, adapter.path) for adapter in adapters] == [
            ("a", "org/a"),
            ("b", "org/b"),
        ]


def test_booleans_in_pairs_are_booleans() -> None:
    result = read(DEFAULT_CHAT_TEMPLATE_KWARGS="enable_thinking=False, budget=3")
    assert result.arguments.vllm.default_chat_template_kwargs == {
        "enable_thinking": False,
        "budget": 3,
    }


def test_options_that_extra_arguments_enable_are_not_idle() -> None:
    extra = {"VLLM_EXTRA_ARGS": "--enable-auto-tool-choice"}
    assert read(TOOL_CALL_PARSER="hermes", **extra).warnings == ()
    (warning,) = read(VLLM_EXTRA_ARGS="--tool-call-parser hermes").warnings
    assert warning == "TOOL_CALL_PARSER has no effect: it needs ENABLE_AUTO_TOOL_CHOICE"
    (warning,) = read(VLLM_EXTRA_ARGS="--disable-log-stats").warnings
    assert "set DISABLE_LOG_STATS" in warning


def test_quotes_around_a_value_warn() -> None:
    assert read(HF_TOKEN='"hf_x"').warnings == (
        "HF_TOKEN stands in quotes, which are part of the value",
    )


@pytest.mark.parametrize(
    ("name", "value", "effective"),
    [
        ("QUANTIZATION", "AWQ", "awq"),
        ("KV_CACHE_DTYPE", "FP8", "fp8"),
        ("LOAD_FORMAT", "SafeTensors", "safetensors"),
    ],
)
def test_choices_of_every_kind_are_accepted_in_any_case(
    name: str, value: str, effective: str
) -> None:
    assert getattr(read(**{name: value}).arguments.vllm, name.lower()) == effective


def test_short_names_of_types_lead_to_the_long_ones() -> None:
    assert "did you mean float16?" in refused(DTYPE="fp16")


@pytest.mark.parametrize(
    "settings",
    [
        {"PREFILL_CONTEXT_PARALLEL_SIZE": "4"},
        {"TENSOR_PARALLEL_SIZE": "4", "DISTRIBUTED_EXECUTOR_BACKEND": "ray"},
        {"TENSOR_PARALLEL_SIZE": "2", "PIPELINE_PARALLEL_SIZE": "2"},
    ],
)
def test_no_parallelism_may_need_more_gpus_than_there_are(
    settings: dict[str, str],
) -> None:
    message = refused(Machine(cpu=False, gpus=(Gpu("GPU", 80 << 30),) * 2), **settings)
    assert "there are 2 GPUs, and 4 would be needed" in message
