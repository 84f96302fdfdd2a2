"""Edge cases of settings: warnings with mistakes, and settings that are nearly right."""

from pathlib import Path

import pytest
from support.settings import read_settings

from worker import start
from worker.engine.machine import Gpu, Machine
from worker.engine.variables import wrong
from worker.settings.mistakes import SettingsError


def gpus(count: int) -> Machine:
    return Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * count)


def read(on: Machine | None = None, /, **settings: str) -> start.Start:
    return read_settings({"MODEL_NAME": "org/model", **settings}, on or gpus(1))


def refused(on: Machine | None = None, /, **settings: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        read(on, **settings)
    return caught.value


# Warnings:


def test_accepted_names_are_sorted_and_keep_the_operators_spelling() -> None:
    settings = {
        "TOKENIZER_NAME": "org/words",
        "MODEL_REVISION": "v2",
        "SEED": "1",
        "MIN_BATCH_SIZE": "2",
        "EMBEDDING_MODEL_NAME": "org/e",
        "EMBEDDING_REVISION": "v3",
        "PATH": "/bin",
    }
    accepted = read(**settings).accepted
    assert accepted == tuple(sorted({*settings, "MODEL_NAME"} - {"PATH"}))


@pytest.mark.parametrize("wrong_one", [{"SEED": "x"}, {"MODEL_NAME": ""}])
def test_a_removed_setting_is_reported_with_the_mistakes(wrong_one: dict[str, str]) -> None:
    error = refused(**wrong_one, SWAP_SPACE="4")
    assert [warning.split()[0] for warning in error.warnings] == ["SWAP_SPACE"]
    assert "Beside these:\n  SWAP_SPACE has no effect" in error.message


def test_an_idle_option_is_reported_with_a_mistake_in_the_workers_own_settings() -> None:
    (warning,) = refused(MODEL_NAME="", MAX_LORAS="4").warnings
    assert warning == "MAX_LORAS has no effect: it needs ENABLE_LORA"


def test_a_removed_setting_in_a_file_does_not_stop_the_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("swap-space: 4")
    (warning,) = read(VLLM_CONFIG_FILE=str(tmp_path / "config.yaml")).warnings
    assert warning.startswith("SWAP_SPACE has no effect")


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"DEFAULT_BATCH_SIZE": "5", "DEFAULT_MIN_BATCH_SIZE": "5"}, ["DEFAULT_MIN_BATCH_SIZE"]),
        ({"DEFAULT_BATCH_SIZE": "5", "DEFAULT_MIN_BATCH_SIZE": "4.9"}, []),
        # 0 stands for the default.
        ({"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "0"}, []),
        ({"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "1.1"}, []),
    ],
)
def test_the_sizes_of_chunks_warn_only_where_they_are_idle(
    settings: dict[str, str], idle: list[str]
) -> None:
    assert [warning.split()[0] for warning in read(**settings).warnings] == idle


@pytest.mark.parametrize("off", ["0", "false", "no", "Off"])
def test_an_option_is_idle_with_any_spelling_of_off(off: str) -> None:
    (warning,) = read(ENABLE_LORA=off, MAX_CPU_LORAS="4").warnings
    assert warning == "MAX_CPU_LORAS has no effect: it needs ENABLE_LORA"


# Mistakes:


@pytest.mark.parametrize("name", ["TOKENIZER", "HF_CONFIG_PATH"])
def test_a_path_that_does_not_exist_is_a_mistake(name: str) -> None:
    (mistake,) = refused(**{name: "/no/such"}).mistakes
    assert mistake.name == name
    assert mistake.advice.startswith("there is no such directory")


def test_a_long_template_is_quoted_by_its_beginning() -> None:
    (mistake,) = refused(CUSTOM_CHAT_TEMPLATE="a" * 200 + "{% if").mistakes
    assert mistake.value == "a" * 77 + "..."


def test_a_template_that_is_not_text_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "template").write_bytes(b"\xff")
    (mistake,) = refused(CUSTOM_CHAT_TEMPLATE=str(tmp_path / "template")).mistakes
    assert mistake.advice.startswith("can't be read")


def test_adapters_of_an_embedder_need_its_own_setting() -> None:
    settings = {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_LORA_MODULES": "a=org/a"}
    (mistake,) = refused(**settings).mistakes
    assert mistake.name == "EMBEDDING_LORA_MODULES"
    assert mistake.advice == "adapters need EMBEDDING_ENABLE_LORA=1"


def test_a_broken_json_list_is_reported_as_broken_json() -> None:
    (mistake,) = refused(ALLOWED_MEDIA_DOMAINS='["a"').mistakes
    assert "broken JSON" in mistake.advice


def test_a_plugin_may_bring_a_parser_that_vllm_lacks(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").touch()
    result = read(REASONING_PARSER="mine", REASONING_PARSER_PLUGIN=str(tmp_path / "plugin.py"))
    assert result.arguments.vllm.reasoning_parser == "mine"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-tp x", "--tensor-parallel-size: a whole number"),
        ("--hf_token sk-canary", "a worker does not take --hf-token"),
        ("org/other --seed 5", "unrecognized arguments: org/other"),
    ],
)
def test_extra_arguments_are_refused_in_any_spelling(words: str, reason: str) -> None:
    (mistake,) = refused(VLLM_EXTRA_ARGS=words).mistakes
    assert mistake.advice.startswith(reason)
    assert "sk-canary" not in str(mistake)


def test_a_variable_that_vllm_can_not_read_is_reported_without_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"VLLM_ENGINE_READY_TIMEOUT_S": "soon", "VLLM_USE_V1_NOT": "x", "HOME": "x"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (mistake,) = wrong(given)
    assert (mistake.name, mistake.value) == ("VLLM_ENGINE_READY_TIMEOUT_S", "soon")
    assert mistake.advice.startswith("vLLM can't read it: ")


@pytest.mark.parametrize(("value", "advice"), [("1", ["leave it unset"]), ("0", [])])
def test_responses_can_not_be_stored(
    monkeypatch: pytest.MonkeyPatch, value: str, advice: list[str]
) -> None:
    name = "VLLM_ENABLE_RESPONSES_API_STORE"
    monkeypatch.setenv(name, value)
    assert [mistake.advice.rpartition(": ")[2] for mistake in wrong({name: value})] == advice


# Defaults:


def test_a_value_that_consoles_write_for_unset_counts_as_unset() -> None:
    arguments = read(MAX_NUM_BATCHED_TOKENS="0").arguments
    assert arguments.vllm.max_num_batched_tokens is None
    assert "MAX_NUM_BATCHED_TOKENS" not in arguments.given


def test_gpus_of_a_parallel_prefill_are_not_used_for_tensor_parallelism() -> None:
    arguments = read(gpus(4), PREFILL_CONTEXT_PARALLEL_SIZE="2").arguments.vllm
    assert arguments.tensor_parallel_size == 2


@pytest.mark.parametrize("size", ["TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE"])
def test_on_a_cpu_several_processes_have_the_executor_that_vllm_chooses(size: str) -> None:
    arguments = read(Machine(cpu=True), **{size: "2"}).arguments.vllm
    assert arguments.distributed_executor_backend is None


def test_without_a_gpu_one_is_still_the_example() -> None:
    (mistake,) = refused(gpus(0), TENSOR_PARALLEL_SIZE="2").mistakes
    assert mistake.example == "1"
