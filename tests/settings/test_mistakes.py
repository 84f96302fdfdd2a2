"""Tests of mistakes in settings and their messages. Warnings are tested in test_warnings.py."""

import re
from pathlib import Path

import pytest
from settings.conftest import Read, Refuse
from support.processes.commands import HANDLER, WORKER, run_command
from support.settings import machine_with_gpus
from support.tables.planted_mistakes import SECRET, SINGLE, TOGETHER, TYPOS, write_files

from worker.doctor.gpus import parse_choice
from worker.engine.variables import find_variable_mistakes


@pytest.mark.parametrize(
    ("settings", "name", "words"), TOGETHER, ids=[str(row[0]) for row in TOGETHER]
)
def test_a_mistake_is_reported_once_with_its_name_and_the_accepted_values(
    settings: dict[str, str], name: str, words: str, tmp_path: Path, refuse: Refuse
) -> None:
    error = refuse(**write_files(settings, tmp_path))
    (mistake,) = error.mistakes
    assert mistake.name == name
    assert words.replace("<folder>", str(tmp_path)) in str(mistake)
    heading, line, *rest = error.message.split("\n")
    assert heading == "1 setting is wrong, so the worker does not start:"
    assert line == f"  {mistake}"
    assert f"{name} is not a setting" not in str(rest)
    assert SECRET not in error.message


def test_a_template_that_is_not_text_is_a_mistake(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "template").write_bytes(b"\xff")
    (mistake,) = refuse(CUSTOM_CHAT_TEMPLATE=str(tmp_path / "template")).mistakes
    assert mistake.advice.startswith("can't be read")


def test_values_of_unknown_keys_in_a_file_are_not_repeated(tmp_path: Path, refuse: Refuse) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"huggingface-token: {SECRET}\nextra: {{password: {SECRET}}}\nhf-home: /x")
    message = refuse(VLLM_CONFIG_FILE=str(file)).message
    assert SECRET not in message
    assert "HF_HOME = '...': " in message
    assert "only the environment can set it" in message


SIZES = ("TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE")


@pytest.mark.parametrize(
    ("count", "settings", "words"),
    [
        (2, {"TENSOR_PARALLEL_SIZE": "3"}, "there are 2 GPUs, and 3 are needed"),
        (1, {"PIPELINE_PARALLEL_SIZE": "2"}, "there is 1 GPU, and 2 are needed"),
        (0, {"TENSOR_PARALLEL_SIZE": "2"}, "there is no GPU, and 2 are needed"),
        (2, {"DATA_PARALLEL_SIZE": "3"}, "there are 2 GPUs, and 3 are needed"),
        (2, {"PREFILL_CONTEXT_PARALLEL_SIZE": "4"}, "there are 2 GPUs, and 4 are needed"),
        (2, dict.fromkeys(SIZES, "2"), "there are 2 GPUs, and 4 are needed"),
    ],
)
def test_missing_gpus_are_a_mistake_of_every_setting_that_requires_them(
    count: int, settings: dict[str, str], words: str, refuse: Refuse
) -> None:
    error = refuse(machine_with_gpus(count), **settings)
    assert {mistake.name: mistake.value for mistake in error.mistakes} == settings
    assert all(mistake.advice.startswith(words) for mistake in error.mistakes)
    assert all("give each worker" in mistake.advice for mistake in error.mistakes)
    assert all(int(mistake.example or 0) >= 1 for mistake in error.mistakes)


@pytest.mark.parametrize(
    ("gpu", "settings", "proposed", "limit"),
    [
        ("ADA_24", {"TENSOR_PARALLEL_SIZE": "2"}, "ADA_24x2", "1"),
        ("ADA_24x2", {"TENSOR_PARALLEL_SIZE": "2", "PIPELINE_PARALLEL_SIZE": "2"}, "ADA_24x4", "1"),
        ("h100", {"DATA_PARALLEL_SIZE": "8"}, "h100x8", "1"),
        ("A40x3", {"TENSOR_PARALLEL_SIZE": "4"}, "A40x4", "3"),
    ],
)
def test_as_many_of_the_chosen_gpus_as_are_needed_are_proposed(
    gpu: str, settings: dict[str, str], proposed: str, limit: str, refuse: Refuse
) -> None:
    for mistake in refuse(parse_choice(gpu).to_machine, **settings).mistakes:
        assert mistake.advice.endswith(f" are needed: choose GPU={proposed}, or leave it unset")
        assert str(mistake).endswith(f", for example {mistake.name}={limit}")


def test_a_variable_that_vllm_cannot_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"VLLM_ENGINE_READY_TIMEOUT_S": "soon", "VLLM_USE_V1_NOT": "x", "HOME": "x"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (mistake,) = find_variable_mistakes(environ)
    assert (mistake.name, mistake.value) == ("VLLM_ENGINE_READY_TIMEOUT_S", "soon")
    assert mistake.advice.startswith("vLLM can't read it: ")


@pytest.mark.parametrize(("value", "advice"), [("1", ["leave it unset"]), ("0", [])])
def test_the_setting_to_store_responses_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str, advice: list[str]
) -> None:
    name = "VLLM_ENABLE_RESPONSES_API_STORE"
    monkeypatch.setenv(name, value)
    assert [
        mistake.advice.rpartition(": ")[2] for mistake in find_variable_mistakes({name: value})
    ] == advice


def test_every_wrong_value_is_reported_with_the_accepted_values(read: Read, refuse: Refuse) -> None:
    error = refuse(**{name: value for name, value, _ in SINGLE})
    found = {mistake.name: mistake for mistake in error.mistakes}
    # Some settings require another setting; its absence is a separate mistake.
    assert {name for name, _, words in SINGLE if words not in str(found.get(name))} == set()
    lines = error.message.split("\n")[1 : len(error.mistakes) + 1]
    assert lines == sorted(lines) == [f"  {mistake}" for mistake in found.values()]
    assert SECRET not in error.message

    def reported_value(name: str, value: str) -> str:
        # The value may contain a secret.
        hidden = {"{": "{...}", "[": "[...]"} if name != "CUSTOM_CHAT_TEMPLATE" else {}
        return hidden.get(value[0], value)

    assert {name: found[name].value for name, *_ in SINGLE} == {
        name: reported_value(name, value) for name, value, _ in SINGLE
    }
    # The examples in the messages are accepted.
    examples = {name: found[name].example for name, *_ in SINGLE if found[name].example}
    assert (
        read(machine_with_gpus(4), **{"ENABLE_LORA": "1", **examples}).settings.model_name
        == "org/model"
    )
    assert len(examples) > len(SINGLE) / 2


def test_a_misspelled_name_warns_with_the_correct_name(read: Read) -> None:
    assert read(**dict.fromkeys(TYPOS, SECRET)).warnings == tuple(
        f"{name} is not a setting: did you mean {TYPOS[name]}?" for name in sorted(TYPOS)
    )


def test_mistakes_of_every_kind_are_reported_together(tmp_path: Path, refuse: Refuse) -> None:
    settings = {
        "MODEL_NAME": "<folder>/nothing",
        "HF_TOKEN": f"{SECRET}-1",
        "HUGGING_FACE_HUB_TOKEN": f"{SECRET}-2",
        "MAX_CONCURRENCY": "0",
        "SEED": "x",
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
    error = refuse(**write_files(settings, tmp_path))
    assert SECRET not in error.message
    valid_settings = {
        "HF_TOKEN",
        "VLLM_CONFIG_FILE",
        "EMBEDDING_MODEL_NAME",
        "GPU_MEMORY_UTILIZATION",
    }
    named = {mistake.name for mistake in error.mistakes}
    assert named == settings.keys() - valid_settings | {"MAX_MODEL_LENGTH"}


# Tests with the worker's command; tests/platform has more of them:


@pytest.mark.slow
@pytest.mark.usefixtures("demo_model")
def test_variables_that_keep_vllm_from_starting_are_reported_without_a_traceback(
    tmp_path: Path,
) -> None:
    # vLLM reads the last variable only on demand.
    settings = {"VLLM_CONFIGURE_LOGGING": "x", "MAX_CONCURRENCY": "0", "VLLM_USE_DEEP_GEMM": "x"}
    broken = {"VLLM_CONFIG_FILE": "<folder>/broken.yaml"}
    result = run_command({**WORKER, **write_files(settings | broken, tmp_path)}, *HANDLER)
    assert result.returncode == 1
    assert "Traceback" not in result.stdout + result.stderr
    named = re.findall(r"^  ([A-Z_]+) = '.+': ", result.stderr, re.M)
    assert named == [
        "MAX_CONCURRENCY",
        "VLLM_CONFIGURE_LOGGING",
        "VLLM_CONFIG_FILE",
        "VLLM_USE_DEEP_GEMM",
    ]
