"""Mistakes in settings, one at a time, and their messages."""

from pathlib import Path

import pytest
from support.settings import read_settings
from support.tables.planted_mistakes import SECRET, SINGLE, TOGETHER, TYPOS, Row, placed

from worker.engine.machine import Gpu, Machine
from worker.settings.mistakes import SettingsError

ALONE: tuple[Row, ...] = tuple(({name: value}, name, accepted) for name, value, accepted in SINGLE)

MANY_TOGETHER = {
    "MODEL_NAME": "<folder>/nothing",
    "HF_TOKEN": f"{SECRET}-1",
    "HUGGING_FACE_HUB_TOKEN": f"{SECRET}-2",
    "MIN_BATCH_SIZE": "2",
    "DEFAULT_MIN_BATCH_SIZE": "3",
    "LORA_MODULES": f'{{"name": "a", "path": "b", "base_model_name": "{SECRET}"}}',
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "CUSTOM_CHAT_TEMPLATE": "<folder>/template.jinja",
    "SPECULATIVE_METHOD": "ngram",
    "SPECULATIVE_CONFIG": f'{{"method": "{SECRET}"}}',
    "VLLM_CONFIG_FILE": "<folder>/unknown.yaml",
    "VLLM_EXTRA_ARGS": f"--api-key {SECRET}",
    "EMBEDDING_MODEL_NAME": "org/e",
    "EMBEDDING_SEED": "y",
    "EMBEDDING_GPU_MEMORY_UTILIZATION": "0.5",
    "GPU_MEMORY_UTILIZATION": "0.6",
}


def gpus(count: int) -> Machine:
    return Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * count)


def refused(on: Machine, **settings: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        read_settings({"MODEL_NAME": "org/model", **settings}, on)
    return caught.value


@pytest.mark.parametrize(
    ("settings", "name", "accepted"),
    ALONE + TOGETHER,
    ids=[str(row[0]) for row in ALONE + TOGETHER],
)
def test_a_mistake_is_reported_once_with_its_name_and_what_is_accepted(
    settings: dict[str, str], name: str, accepted: str, tmp_path: Path
) -> None:
    error = refused(gpus(1), **placed(settings, tmp_path))
    (mistake,) = error.mistakes
    assert mistake.name == name
    assert accepted.replace("<folder>", str(tmp_path)) in str(mistake)
    heading, line, *rest = error.message.split("\n")
    assert heading == "1 setting is wrong, so the worker does not start:"
    assert line == f"  {mistake}"
    assert f"{name} is not a setting" not in str(rest)
    assert SECRET not in error.message


def test_at_least_sixty_mistakes_are_planted() -> None:
    assert len({*map(str, ALONE + TOGETHER), *TYPOS}) >= 60


@pytest.mark.parametrize(("name", "value", "accepted"), SINGLE)
def test_the_value_is_quoted_unless_it_may_hold_a_secret(
    name: str, value: str, accepted: str
) -> None:
    (mistake,) = refused(gpus(1), **{name: value}).mistakes
    hidden = {"{": "{...}", "[": "[...]"} if name != "CUSTOM_CHAT_TEMPLATE" else {}
    assert mistake.value == hidden.get(value[0], value), accepted


@pytest.mark.parametrize(("name", "value", "accepted"), SINGLE)
def test_an_example_is_one_that_would_be_accepted(name: str, value: str, accepted: str) -> None:
    needed = {"ENABLE_LORA": "1"} if "LORA" in name else {}
    (mistake,) = refused(gpus(4), **{name: value}, **needed).mistakes
    if mistake.example is not None:
        settings = {"MODEL_NAME": "org/model", **needed, name: mistake.example}
        assert read_settings(settings, gpus(4)).settings.model_name == "org/model", accepted


@pytest.mark.parametrize("name", TYPOS)
def test_a_misspelled_name_warns_with_the_one_that_was_meant(name: str) -> None:
    warnings = read_settings({"MODEL_NAME": "org/model", name: SECRET}, gpus(1)).warnings
    assert warnings == (f"{name} is not a setting: did you mean {TYPOS[name]}?",)


def test_all_mistakes_are_reported_at_once_and_in_order() -> None:
    settings = {name: value for name, value, _ in SINGLE}
    error = refused(gpus(1), **settings)
    lines = error.message.split("\n")[1 : len(error.mistakes) + 1]
    assert lines == sorted(lines) == [f"  {mistake}" for mistake in error.mistakes]
    assert {mistake.name for mistake in error.mistakes} >= settings.keys()
    assert SECRET not in error.message


def test_settings_that_exclude_each_other_are_reported_at_once(tmp_path: Path) -> None:
    error = refused(gpus(1), **placed(MANY_TOGETHER, tmp_path))
    assert SECRET not in error.message
    assert {mistake.name for mistake in error.mistakes} >= {
        "MODEL_NAME",
        "HUGGING_FACE_HUB_TOKEN",
        "MIN_BATCH_SIZE",
        "LORA_MODULES",
        "ENABLE_AUTO_TOOL_CHOICE",
        "CUSTOM_CHAT_TEMPLATE",
        "SPECULATIVE_METHOD",
        "MAX_MODEL_LENGTH",
        "VLLM_EXTRA_ARGS",
        "EMBEDDING_SEED",
        "EMBEDDING_GPU_MEMORY_UTILIZATION",
    }


@pytest.mark.parametrize(
    ("count", "settings", "needed", "there"),
    [
        (2, {"TENSOR_PARALLEL_SIZE": "3"}, 3, "there are 2 GPUs"),
        (1, {"TENSOR_PARALLEL_SIZE": "2"}, 2, "there is 1 GPU"),
        (0, {"TENSOR_PARALLEL_SIZE": "2"}, 2, "there is no GPU"),
        (2, {"PIPELINE_PARALLEL_SIZE": "3"}, 3, "there are 2 GPUs"),
        (2, {"DATA_PARALLEL_SIZE": "3"}, 3, "there are 2 GPUs"),
        (2, {"TENSOR_PARALLEL_SIZE": "2", "PIPELINE_PARALLEL_SIZE": "2"}, 4, "there are 2 GPUs"),
    ],
)
def test_more_gpus_than_there_are_is_a_mistake_of_every_setting_that_asks_for_them(
    count: int, settings: dict[str, str], needed: int, there: str
) -> None:
    error = refused(gpus(count), **settings)
    assert {mistake.name: mistake.value for mistake in error.mistakes} == settings
    for mistake in error.mistakes:
        assert mistake.advice.startswith(f"{there}, and {needed} would be needed")


def test_an_embedder_that_asks_for_more_gpus_than_there_are_has_a_mistake_of_its_own() -> None:
    settings = {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_TENSOR_PARALLEL_SIZE": "8"}
    (mistake,) = refused(gpus(4), **settings).mistakes
    assert (mistake.name, mistake.value) == ("EMBEDDING_TENSOR_PARALLEL_SIZE", "8")


def test_a_share_of_memory_in_the_extra_arguments_leaves_room_for_the_embedder() -> None:
    extra = {"VLLM_EXTRA_ARGS": "--gpu-memory-utilization 0.95", "EMBEDDING_MODEL_NAME": "org/e"}
    (mistake,) = refused(gpus(1), **extra).mistakes
    assert (mistake.name, mistake.value) == ("GPU_MEMORY_UTILIZATION", "0.95")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"MAX_LORAS": "4"}, "MAX_LORAS has no effect: it needs ENABLE_LORA"),
        ({"TOOL_CALL_PARSER": "hermes"}, "TOOL_CALL_PARSER has no effect: it needs ENABLE_AUTO"),
        ({"NNODES": "2"}, "NNODES has no effect: a worker is one machine"),
        ({"SSL_KEYFILE": "x"}, "SSL_KEYFILE has no effect: vLLM's server runs inside the worker"),
        ({"UVICORN_LOG_LEVEL": "debug"}, "UVICORN_LOG_LEVEL has no effect: vLLM's server"),
        ({"EMBEDDING_SEED": "1"}, "EMBEDDING_SEED has no effect without EMBEDDING_MODEL_NAME"),
        (
            {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_SWAP_SPACE": "4"},
            "EMBEDDING_SWAP_SPACE has no effect: vLLM has had no such option since 0.18",
        ),
        (
            {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_MAX_CONCURRENCY": "4"},
            "EMBEDDING_MAX_CONCURRENCY has no effect: ",
        ),
        (
            {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_NNODES": "2"},
            "EMBEDDING_NNODES has no effect: a worker is one machine",
        ),
        (
            {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_MAX_LORAS": "4"},
            "EMBEDDING_MAX_LORAS has no effect: it needs EMBEDDING_ENABLE_LORA",
        ),
        (
            {"DEFAULT_BATCH_SIZE": "5", "DEFAULT_MIN_BATCH_SIZE": "7"},
            "DEFAULT_MIN_BATCH_SIZE has no effect: it is not below DEFAULT_BATCH_SIZE",
        ),
        (
            {"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "1"},
            "DEFAULT_BATCH_SIZE_GROWTH_FACTOR has no effect: it is not above 1",
        ),
    ],
)
def test_a_setting_without_effect_warns(settings: dict[str, str], expected: str) -> None:
    (warning,) = read_settings({"MODEL_NAME": "org/model", **settings}, gpus(1)).warnings
    assert warning.startswith(expected)


@pytest.mark.parametrize("name", ["DISABLE_LOG_REQUESTS", "ENABLE_LOG_REQUESTS"])
def test_a_setting_of_the_embedder_has_an_effect_or_a_warning_but_not_both(name: str) -> None:
    value = "0" if name.startswith("DISABLE") else "1"
    settings = {"EMBEDDING_MODEL_NAME": "org/e", f"EMBEDDING_{name}": value}
    result = read_settings({"MODEL_NAME": "org/model", **settings}, gpus(1))
    assert result.embedder is not None
    assert result.embedder.vllm.enable_log_requests is (result.warnings == ())
    assert result.arguments.vllm.enable_log_requests is False
