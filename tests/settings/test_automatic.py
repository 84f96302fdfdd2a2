"""The defaults of settings: few are the worker's, the others are vLLM's own."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from settings.conftest import Read
from support.doctor import CPU
from support.settings import gpus

from worker.engine.description import defaults
from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS, fitting_tensor_parallel_size
from worker.engine.seam.locations import find
from worker.engine.start import Start
from worker.engine.start.steps import with_fitting_tensor_parallel_size

ONE = gpus(1)


def chosen(result: Start) -> dict[str, str]:
    choices = list(defaults(result.arguments))
    assert [str(one) for one in choices] == [f"{c.name}={c.value} ({c.reason})" for c in choices]
    return {choice.name: f"{choice.value}: {choice.reason}" for choice in choices}


def not_vllms(arguments: Namespace) -> dict[str, Any]:
    """Return what differs from vLLM's own defaults, but for the backend of structured outputs."""
    assert arguments.structured_outputs_config.backend == "xgrammar"
    parser = find("make_arg_parser")(find("FlexibleArgumentParser")())
    own = vars(parser.parse_args([]))
    unlike = object()
    return {
        name: value
        for name, value in vars(arguments).items()
        if own.get(name, unlike) != value and name != "structured_outputs_config"
    }


OF_A_CPU = {
    "dtype": "float32",
    "enforce_eager": True,
    "worker_cls": "worker.engine.seam.cpu_worker.CPUWorker",
    "distributed_executor_backend": "uni",
}


@pytest.mark.parametrize(
    ("on", "own"), [(ONE, {"gpu_memory_utilization": 0.95}), (CPU, OF_A_CPU)], ids=["gpu", "cpu"]
)
def test_most_defaults_are_vllms_own(on: Machine, own: dict[str, Any], read: Read) -> None:
    named = {"model": "org/model", "served_model_name": ["org/model"], "max_model_len": -1}
    assert not_vllms(read(on).arguments.vllm) == {**named, **own}


@pytest.mark.parametrize(
    "source", [{}, {"DISABLE_LOG_STATS": "1"}, {"VLLM_EXTRA_ARGS": "--disable-log-stats"}], ids=str
)
def test_metrics_stay_whatever_is_logged(source: dict[str, str], read: Read) -> None:
    assert read(**source).arguments.vllm.disable_log_stats is False


@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        ({}, False),
        ({"DISABLE_LOG_REQUESTS": "No"}, True),
        ({"ENABLE_LOG_REQUESTS": "on"}, True),
        ({"VLLM_EXTRA_ARGS": "--enable-log-requests"}, True),
        ({"DISABLE_LOG_REQUESTS": "1"}, False),
        ({"ENABLE_LOG_REQUESTS": "0", "DISABLE_LOG_REQUESTS": "1"}, False),
        ({"DISABLE_LOG_REQUESTS": "0", "VLLM_EXTRA_ARGS": "--no-enable-log-requests"}, False),
    ],
    ids=str,
)
def test_either_name_turns_logging_on(settings: dict[str, str], logged: bool, read: Read) -> None:
    assert read(**settings).arguments.vllm.enable_log_requests is logged


@pytest.mark.parametrize(
    ("on", "settings", "size", "chooses"),
    [
        (gpus(2), {}, 2, True),
        (gpus(4), {"PIPELINE_PARALLEL_SIZE": "4"}, 1, True),
        (gpus(8), {"DATA_PARALLEL_SIZE": "2", "PIPELINE_PARALLEL_SIZE": "2"}, 2, True),
        (gpus(4), {"DATA_PARALLEL_SIZE": "3"}, 1, True),
        (gpus(4), {"PREFILL_CONTEXT_PARALLEL_SIZE": "2"}, 2, True),
        (gpus(4), {"VLLM_EXTRA_ARGS": "-pp 2"}, 2, True),
        (gpus(4), {"TENSOR_PARALLEL_SIZE": "2"}, 2, False),
        (gpus(4), {"VLLM_EXTRA_ARGS": "--tensor-parallel-size 2"}, 2, False),
        *((on, {}, 1, False) for on in (CPU, gpus(0), ONE)),
    ],
    ids=lambda value: f"{len(value.gpus)} GPUs" if isinstance(value, Machine) else str(value),
)
def test_the_model_is_divided_among_the_gpus_that_are_left_unless_a_size_is_set(
    on: Machine, settings: dict[str, str], size: int, chooses: bool, read: Read
) -> None:
    result = read(on, **settings)
    assert result.arguments.vllm.tensor_parallel_size == size
    choice = f"{size}: {len(on.gpus)} GPUs are there" if chooses else None
    assert chosen(result).get("TENSOR_PARALLEL_SIZE") == choice


@pytest.mark.parametrize(
    ("count", "settings", "sizes", "shares"),
    [
        (1, {}, [1, 1], [0.85, 0.1]),
        (4, {"EMBEDDING_GPU_MEMORY_UTILIZATION": "0.2"}, [4, 1], [0.75, 0.2]),
    ],
    ids=["one GPU", "several, and a share of its own"],
)
def test_an_embedder_shares_one_of_the_models_gpus(
    count: int, settings: dict[str, str], sizes: list[int], shares: list[float], read: Read
) -> None:
    engines = read(gpus(count), EMBEDDING_MODEL_NAME="org/e", **settings).engines
    assert [engine.vllm.tensor_parallel_size for engine in engines] == sizes
    assert [engine.vllm.gpu_memory_utilization for engine in engines] == shares


@pytest.mark.parametrize(
    ("there", "heads", "size"),
    [(4, 32, 4), (4, 14, 2), (8, 12, 6), (3, 4, 2), (2, 9, 1), (4, 0, 4)],
)
def test_heads_are_divided_among_as_many_gpus_as_can_be(there: int, heads: int, size: int) -> None:
    assert fitting_tensor_parallel_size(there, heads) == size


@pytest.mark.parametrize(
    ("settings", "size", "choice"),
    [
        ({}, 2, "2: as many of 3 GPUs as can share its attention heads"),
        ({"TENSOR_PARALLEL_SIZE": "3"}, 3, None),
    ],
    ids=["unset", "set"],
)
def test_only_an_unset_size_is_made_to_fit_the_two_heads_of_the_model(
    settings: dict[str, str], size: int, choice: str | None, demo_model: Path, read: Read
) -> None:
    result = read(gpus(3), MODEL_NAME=str(demo_model), **settings)
    arguments = with_fitting_tensor_parallel_size(result.arguments, result.context)
    assert arguments.vllm.tensor_parallel_size == size
    shown = {one.name: f"{one.value}: {one.reason}" for one in arguments.defaults}
    assert shown.get("TENSOR_PARALLEL_SIZE") == choice


@pytest.mark.parametrize("size", ["TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE"])
def test_several_processes_on_a_cpu_have_vllms_executor(size: str, read: Read) -> None:
    arguments = read(CPU, **{size: "2"}).arguments.vllm
    assert arguments.distributed_executor_backend is None


EVERYWHERE = {
    "MAX_MODEL_LEN": "auto: the longest text that the memory holds",
    "STRUCTURED_OUTPUTS_CONFIG": '{"backend": "xgrammar"}: one backend checks and compiles',
    "SERVED_MODEL_NAME": "org/model: MODEL_NAME",
    "TOKENIZER": "org/model: the model's own",
    "RUNPOD_LOG_LEVEL": "INFO: the SDK's own DEBUG prints every answer",
}
ON_A_CPU = {
    "DTYPE": "float32: no GPU; bfloat16 is an illegal instruction on some CPUs",
    "ENFORCE_EAGER": "1: no GPU; there are no CUDA graphs to capture",
    "WORKER_CLS": "worker.engine.seam.cpu_worker.CPUWorker: "
    "no GPU; vLLM's own dies of a seed with a long prompt",
    "DISTRIBUTED_EXECUTOR_BACKEND": "uni: one process starts fastest",
    **{name: f"{value}: no GPU" for name, value in CPU_EXPORTS.items()},
}
ON_A_GPU = {"GPU_MEMORY_UTILIZATION": "0.95: the worker has the GPU for itself"}


@pytest.mark.parametrize(("on", "own"), [(CPU, ON_A_CPU), (ONE, ON_A_GPU)], ids=["cpu", "gpu"])
def test_every_default_has_a_reason(on: Machine, own: dict[str, str], read: Read) -> None:
    assert chosen(read(on)) == EVERYWHERE | own


@pytest.mark.parametrize(
    ("on", "name", "value", "effective"),
    [
        (CPU, "DTYPE", "bfloat16", "bfloat16"),
        (CPU, "ENFORCE_EAGER", "0", False),
        (CPU, "DISTRIBUTED_EXECUTOR_BACKEND", "mp", "mp"),
        (CPU, "WORKER_CLS", "mine.Worker", "mine.Worker"),
        (ONE, "GPU_MEMORY_UTILIZATION", "0.5", 0.5),
    ],
)
def test_a_set_value_stays(on: Machine, name: str, value: str, effective: Any, read: Read) -> None:
    result = read(on, **{name: value})
    assert name not in chosen(result)
    assert getattr(result.arguments.vllm, name.lower()) == effective


def test_a_path_is_never_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    (tmp_path / "version-2").mkdir()
    (tmp_path / "mine").symlink_to("version-2")
    monkeypatch.chdir(tmp_path / "version-2")
    for path in (f"{tmp_path}/mine/", "../mine", "../version-2/../mine"):
        choices = chosen(read(CPU, MODEL_NAME=path))
        assert choices["SERVED_MODEL_NAME"] == "mine: the last part of MODEL_NAME"
        assert choices["TOKENIZER"] == "mine: the model's own"
        assert str(tmp_path) not in str(choices)
    assert read(CPU, MODEL_NAME=".").arguments.vllm.served_model_name == ["version-2"]


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
    ids=str,
)
def test_what_is_set_is_not_chosen(settings: dict[str, str], unchosen: str, read: Read) -> None:
    assert unchosen not in chosen(read(**settings))
