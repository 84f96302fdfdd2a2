"""The defaults of settings: few are the worker's, the others are vLLM's own."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from support.settings import read_settings

from worker import start
from worker.engine.locations import find
from worker.engine.machine import Gpu, Machine
from worker.engine.options.automatic import CPU_EXPORTS, fitting_tensor_parallel_size
from worker.engine.summary import defaults

CPU = Machine(cpu=True)


def gpus(count: int) -> Machine:
    return Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * count)


def read(on: Machine, **settings: str) -> start.Start:
    return read_settings({"MODEL_NAME": "org/model", **settings}, on)


def chosen(on: Machine, **settings: str) -> dict[str, str]:
    """Return the worker's defaults and their reasons."""
    choices = list(defaults(read(on, **settings).arguments))
    assert [str(choice) for choice in choices] == [
        f"{c.name}={c.value} ({c.reason})" for c in choices
    ]
    return {choice.name: f"{choice.value}: {choice.reason}" for choice in choices}


def not_vllms(arguments: Namespace) -> dict[str, Any]:
    """Return the values that differ from the defaults of vLLM's own parser.

    But for the backend of structured outputs, which is the same on every machine.
    """
    assert arguments.structured_outputs_config.backend == "xgrammar"
    parser = find("make_arg_parser")(find("FlexibleArgumentParser")())
    own = vars(parser.parse_args([]))
    unlike = object()
    return {
        name: value
        for name, value in vars(arguments).items()
        if own.get(name, unlike) != value and name != "structured_outputs_config"
    }


# The defaults:


def test_the_worker_has_the_documented_defaults() -> None:
    values = read(gpus(1)).settings.model_dump()
    assert {
        "base_path": Path("/runpod-volume"),
        "max_concurrency": 300,
        "default_batch_size": 50,
        "default_min_batch_size": 1,
        "default_batch_size_growth_factor": 3,
        "default_batch_max_delay_ms": 100,
        "default_max_tokens": 16,
        "raw_openai_output": True,
        "disable_log_stats": True,
        "disable_log_requests": True,
    }.items() <= values.items()


def test_on_a_gpu_all_but_what_the_model_and_the_memory_ask_for_is_vllms_own_default() -> None:
    assert not_vllms(read(gpus(1)).arguments.vllm) == {
        "model": "org/model",
        "served_model_name": ["org/model"],
        "gpu_memory_utilization": 0.95,
        "max_model_len": -1,
    }


def test_on_a_cpu_the_engine_is_one_that_starts_fast_and_runs_anywhere() -> None:
    assert not_vllms(read(CPU).arguments.vllm) == {
        "model": "org/model",
        "served_model_name": ["org/model"],
        "dtype": "float32",
        "enforce_eager": True,
        "worker_cls": "worker.engine.cpu_worker.CPUWorker",
        "distributed_executor_backend": "uni",
        "max_model_len": -1,
    }


def test_the_defaults_silence_lines_of_the_log_but_no_metrics() -> None:
    result = read(gpus(1))
    assert (result.settings.disable_log_stats, result.arguments.vllm.disable_log_stats) == (
        True,
        False,
    )
    assert result.arguments.vllm.enable_log_requests is False


@pytest.mark.parametrize(
    "source",
    [
        {"DISABLE_LOG_STATS": "1"},
        {"DISABLE_LOG_STATS": "0"},
        {"VLLM_EXTRA_ARGS": "--disable-log-stats"},
    ],
)
def test_metrics_stay_whatever_is_logged(source: dict[str, str]) -> None:
    assert read(gpus(1), **source).arguments.vllm.disable_log_stats is False


@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        ({"DISABLE_LOG_REQUESTS": "0"}, True),
        ({"DISABLE_LOG_REQUESTS": "No"}, True),
        ({"ENABLE_LOG_REQUESTS": "1"}, True),
        ({"ENABLE_LOG_REQUESTS": "on"}, True),
        ({"VLLM_EXTRA_ARGS": "--enable-log-requests"}, True),
        ({"DISABLE_LOG_REQUESTS": "1"}, False),
        ({"ENABLE_LOG_REQUESTS": "0"}, False),
        ({"ENABLE_LOG_REQUESTS": "0", "DISABLE_LOG_REQUESTS": "1"}, False),
        ({"DISABLE_LOG_REQUESTS": "0", "VLLM_EXTRA_ARGS": "--no-enable-log-requests"}, False),
    ],
)
def test_requests_are_logged_where_either_name_asks_for_it(
    settings: dict[str, str], logged: bool
) -> None:
    assert read(gpus(1), **settings).arguments.vllm.enable_log_requests is logged


# Defaults that depend on the machine:


@pytest.mark.parametrize(
    ("count", "settings", "size"),
    [
        (2, {}, 2),
        (4, {}, 4),
        (4, {"PIPELINE_PARALLEL_SIZE": "2"}, 2),
        (4, {"PIPELINE_PARALLEL_SIZE": "4"}, 1),
        (4, {"DATA_PARALLEL_SIZE": "2"}, 2),
        (8, {"DATA_PARALLEL_SIZE": "2", "PIPELINE_PARALLEL_SIZE": "2"}, 2),
        (4, {"DATA_PARALLEL_SIZE": "3"}, 1),
        (4, {"VLLM_EXTRA_ARGS": "-pp 2"}, 2),
    ],
)
def test_the_model_is_divided_among_the_gpus_that_are_left(
    count: int, settings: dict[str, str], size: int
) -> None:
    assert read(gpus(count), **settings).arguments.vllm.tensor_parallel_size == size
    choices = chosen(gpus(count), **settings)
    assert choices["TENSOR_PARALLEL_SIZE"] == f"{size}: {count} GPUs are there"


@pytest.mark.parametrize(
    "settings", [{"TENSOR_PARALLEL_SIZE": "2"}, {"VLLM_EXTRA_ARGS": "--tensor-parallel-size 2"}]
)
def test_a_tensor_parallel_size_that_is_set_stays(settings: dict[str, str]) -> None:
    assert read(gpus(4), **settings).arguments.vllm.tensor_parallel_size == 2
    assert "TENSOR_PARALLEL_SIZE" not in chosen(gpus(4), **settings)


@pytest.mark.parametrize("on", [CPU, gpus(0), gpus(1)])
def test_without_several_gpus_nothing_is_divided(on: Machine) -> None:
    assert read(on).arguments.vllm.tensor_parallel_size == 1
    assert "TENSOR_PARALLEL_SIZE" not in chosen(on)


def test_an_embedder_shares_one_of_the_models_gpus() -> None:
    result = read(gpus(4), EMBEDDING_MODEL_NAME="org/e")
    assert result.arguments.vllm.tensor_parallel_size == 4
    assert result.embedder is not None
    assert result.embedder.vllm.tensor_parallel_size == 1
    assert (
        result.arguments.vllm.gpu_memory_utilization,
        result.embedder.vllm.gpu_memory_utilization,
    ) == (
        0.85,
        0.1,
    )


@pytest.mark.parametrize(
    ("there", "heads", "size"), [(4, 32, 4), (4, 14, 2), (8, 12, 6), (3, 4, 2), (2, 9, 1)]
)
def test_as_many_gpus_share_a_model_as_its_attention_heads_can_be_divided_among(
    there: int, heads: int, size: int
) -> None:
    assert fitting_tensor_parallel_size(there, heads) == size


def test_a_model_without_attention_heads_is_divided_among_all() -> None:
    assert fitting_tensor_parallel_size(4, 0) == 4


ON_CPU = {
    "DTYPE": "float32: no GPU; bfloat16 is an illegal instruction on some CPUs",
    "ENFORCE_EAGER": "1: no GPU; there are no CUDA graphs to capture",
    "WORKER_CLS": "worker.engine.cpu_worker.CPUWorker: "
    "no GPU; vLLM's own dies of a seed with a long prompt",
    "DISTRIBUTED_EXECUTOR_BACKEND": "uni: one process starts fastest",
}
LONGEST = "auto: the longest text that the memory holds"
BACKEND = '{"backend": "xgrammar"}: one backend checks and compiles'
ON_GPU = {"GPU_MEMORY_UTILIZATION": "0.95: the worker has the GPU for itself"}


@pytest.mark.parametrize(("on", "expected"), [(CPU, ON_CPU), (gpus(1), ON_GPU)], ids=["cpu", "gpu"])
def test_defaults_that_suit_the_machine_have_a_reason(
    on: Machine, expected: dict[str, str]
) -> None:
    elsewhere = {"SERVED_MODEL_NAME", "TOKENIZER", "RUNPOD_LOG_LEVEL", *CPU_EXPORTS}
    expected |= {"STRUCTURED_OUTPUTS_CONFIG": BACKEND, "MAX_MODEL_LEN": LONGEST}
    assert {name: why for name, why in chosen(on).items() if name not in elsewhere} == expected


def test_the_operators_backend_of_structured_outputs_is_kept() -> None:
    read_ = read(gpus(1), STRUCTURED_OUTPUTS_CONFIG='{"backend": "guidance"}')
    assert read_.arguments.vllm.structured_outputs_config.backend == "guidance"


def test_variables_set_for_libraries_are_reported_where_the_operator_left_them_unset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RUNPOD_LOG_LEVEL", *CPU_EXPORTS):
        monkeypatch.delenv(name, raising=False)
    choices = chosen(CPU)
    assert choices["RUNPOD_LOG_LEVEL"] == "INFO: the SDK's own DEBUG prints every answer"
    assert choices["VLLM_CPU_KVCACHE_SPACE"] == "1: no GPU"
    assert not {"RUNPOD_LOG_LEVEL", *CPU_EXPORTS} & chosen(CPU).keys()


@pytest.mark.parametrize(
    ("on", "name", "value", "effective"),
    [
        (CPU, "DTYPE", "bfloat16", "bfloat16"),
        (CPU, "ENFORCE_EAGER", "0", False),
        (CPU, "DISTRIBUTED_EXECUTOR_BACKEND", "mp", "mp"),
        (CPU, "WORKER_CLS", "mine.Worker", "mine.Worker"),
        (gpus(1), "GPU_MEMORY_UTILIZATION", "0.5", 0.5),
    ],
)
def test_a_default_does_not_replace_a_set_value(
    on: Machine, name: str, value: str, effective: Any
) -> None:
    assert name in chosen(on)
    assert name not in chosen(on, **{name: value})
    assert getattr(read(on, **{name: value}).arguments.vllm, name.lower()) == effective


# Defaults that depend on the model:


def test_a_directorys_path_is_never_the_served_name(tmp_path: Path) -> None:
    (tmp_path / "version-2").mkdir()
    (tmp_path / "mine").symlink_to("version-2")
    for path in (tmp_path / "mine", f"{tmp_path}/mine/", tmp_path / "version-2" / ".." / "mine"):
        choices = chosen(CPU, MODEL_NAME=str(path))
        assert choices["SERVED_MODEL_NAME"] == "mine: the last part of MODEL_NAME"
        assert choices["TOKENIZER"] == "mine: the model's own"
        assert str(tmp_path) not in str(choices)


def test_a_repository_is_served_by_its_own_name_and_brings_its_tokenizer() -> None:
    choices = chosen(CPU)
    assert choices["SERVED_MODEL_NAME"] == "org/model: MODEL_NAME"
    assert choices["TOKENIZER"] == "org/model: the model's own"


@pytest.mark.parametrize(
    ("settings", "unchosen"),
    [
        ({"OPENAI_SERVED_MODEL_NAME_OVERRIDE": "mine"}, "SERVED_MODEL_NAME"),
        ({"SERVED_MODEL_NAME": "mine"}, "SERVED_MODEL_NAME"),
        ({"VLLM_EXTRA_ARGS": "--served-model-name mine"}, "SERVED_MODEL_NAME"),
        ({"TOKENIZER_NAME": "org/words"}, "TOKENIZER"),
        ({"TOKENIZER": "org/words"}, "TOKENIZER"),
        ({"VLLM_EXTRA_ARGS": "--tokenizer org/words"}, "TOKENIZER"),
        ({"SKIP_TOKENIZER_INIT": "1"}, "TOKENIZER"),
    ],
)
def test_a_name_or_a_tokenizer_that_is_set_is_not_chosen(
    settings: dict[str, str], unchosen: str
) -> None:
    assert unchosen in chosen(CPU)
    assert unchosen not in chosen(CPU, **settings)


@pytest.mark.parametrize(
    "settings", [{"SERVED_MODEL_NAME": "mine"}, {"VLLM_EXTRA_ARGS": "--served-model-name mine"}]
)
def test_a_model_keeps_its_own_name_behind_those_that_are_set(settings: dict[str, str]) -> None:
    assert read(CPU, **settings).arguments.vllm.served_model_name == ["mine", "org/model"]
