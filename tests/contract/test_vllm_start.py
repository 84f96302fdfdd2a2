"""What the worker reads for its start, with vLLM's own parser; no engine is started."""

import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker import start
from worker.engine.locations import find
from worker.engine.options import Options
from worker.engine.parsers import FAMILIES, hints
from worker.errors import SettingsError


@pytest.fixture(autouse=True)
def _environ() -> Iterator[None]:
    """Leave the environment as it was: a start completes it for the libraries below."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def parsed(**environ: str) -> Namespace:
    return Options().parse({"MODEL": "org/name", **environ})


# What a start is read from:


def read(**environ: str) -> start.Start:
    return start.read({"MODEL_NAME": "org/model", **environ})


def test_a_worker_with_one_model_has_no_embedder() -> None:
    told = read(SEED="7", EMBEDDING_MODEL="org/minilm", EMBEDDING_SEED="8")
    assert (told.embedder, told.arguments.model, told.arguments.seed) == (None, "org/model", 7)
    assert "MAX_MODEL_LEN" in told.options


def test_an_embedder_has_settings_of_its_own_and_is_to_embed() -> None:
    told = read(SEED="7", EMBEDDING_MODEL_NAME="org/minilm", EMBEDDING_SEED="8")
    assert told.embedder is not None
    assert (told.arguments.model, told.arguments.seed) == ("org/model", 7)
    assert (told.embedder.model, told.embedder.seed) == ("org/minilm", 8)
    assert (told.arguments.runner, told.embedder.runner) == ("auto", "pooling")


def test_an_operator_may_say_otherwise() -> None:
    told = read(EMBEDDING_MODEL_NAME="org/minilm", EMBEDDING_RUNNER="auto")
    assert (told.embedder or Namespace()).runner == "auto"


def test_mistakes_in_all_settings_are_told_together() -> None:
    with pytest.raises(SettingsError) as refused:
        read(
            MAX_CONCURRENCY="0",
            SEED="x",
            GPU_MEMORY_UTILIZATION="0.95",
            EMBEDDING_MODEL_NAME="org/minilm",
            EMBEDDING_SEED="y",
        )
    assert [mistake.name for mistake in refused.value.mistakes] == [
        "EMBEDDING_GPU_MEMORY_UTILIZATION",
        "EMBEDDING_SEED",
        "MAX_CONCURRENCY",
        "SEED",
    ]


def test_on_a_gpu_each_engine_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(find("current_platform")), "is_cpu", lambda _: False)
    both = read(EMBEDDING_MODEL_NAME="org/minilm", EMBEDDING_GPU_MEMORY_UTILIZATION="0.2")
    assert both.arguments.gpu_memory_utilization == 0.75
    assert (both.embedder or Namespace()).gpu_memory_utilization == 0.2
    both = read(EMBEDDING_MODEL_NAME="org/minilm")
    assert both.arguments.gpu_memory_utilization == 0.85
    assert (both.embedder or Namespace()).gpu_memory_utilization == 0.1
    assert read().arguments.gpu_memory_utilization == 0.95
    assert parsed().gpu_memory_utilization == 0.95


# What a model is called:


@pytest.mark.parametrize(
    ("given_names", "names"),
    [
        ({}, ["org/name"]),
        ({"SERVED_MODEL_NAME": "a, b,,"}, ["a", "b", "org/name"]),
        ({"SERVED_MODEL_NAME": '["a", "b, c", 5]'}, ["a", "b, c", "5", "org/name"]),
        ({"SERVED_MODEL_NAME": "org/name,a,a"}, ["org/name", "a"]),
    ],
)
def test_a_model_is_served_by_its_own_name_behind_the_operators(
    given_names: dict[str, str], names: list[str]
) -> None:
    assert parsed(**given_names).served_model_name == names


def test_a_model_in_a_directory_is_called_by_the_directorys_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    for model in (str(tmp_path / "my-model"), f"{tmp_path}/my-model/", "."):
        assert parsed(MODEL=model, SERVED_MODEL_NAME="a").served_model_name == ["a", "my-model"]


def test_objects_in_a_list_stay_json() -> None:
    value = '{"name": "a", "path": "org/a"}'
    for given_value in (value, f"[{value}]"):
        (adapter,) = parsed(LORA_MODULES=given_value).lora_modules
        assert (adapter.name, adapter.path) == ("a", "org/a")


# Which parsers suit it:


@pytest.mark.parametrize(
    ("name", "parsers"),
    [
        ("openai/gpt-oss-20b", ["openai", "openai_gptoss"]),
        ("Qwen/Qwen3-8B", ["hermes", "qwen3"]),
        ("Qwen/Qwen3-4B-Instruct-2507", ["hermes"]),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", ["qwen3_coder"]),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", ["deepseek_r1"]),
        ("deepseek-ai/DeepSeek-R1", ["deepseek_v3", "deepseek_r1"]),
        ("meta-llama/Llama-3.2-1B", ["llama3_json"]),
        ("demo", []),
    ],
)
def test_a_well_known_model_is_hinted_its_parsers(name: str, parsers: list[str]) -> None:
    arguments = Namespace(served_model_name=["x", name], tool_call_parser="", reasoning_parser="")
    assert [hint.rpartition("=")[2] for hint in hints(arguments)] == parsers


def test_what_the_operator_chose_is_hinted_no_more() -> None:
    chosen = Namespace(served_model_name=["Qwen3"], tool_call_parser="x", reasoning_parser="")
    assert list(hints(chosen)) == [
        "to tell reasoning from the answer set REASONING_PARSER=qwen3",
    ]
    chosen.reasoning_parser, chosen.tool_call_parser = "x", None
    assert list(hints(chosen)) == [
        "for tool calls set ENABLE_AUTO_TOOL_CHOICE=1 and TOOL_CALL_PARSER=hermes",
    ]


def test_every_hinted_parser_is_one_of_vllms() -> None:
    tools = {row[1] for row in FAMILIES} - {None}
    reasoning = {row[2] for row in FAMILIES} - {None}
    unknown = tools - {*find("ToolParserManager").list_registered()}
    unknown |= reasoning - {*find("ReasoningParserManager").list_registered()}
    assert len(unknown) <= 3  # of a release that lacks the newest
