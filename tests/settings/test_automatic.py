"""Tests of the defaults of settings: a few are the worker's own, the others are vLLM's."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from settings.conftest import Read
from support.doctor import CPU
from support.settings import machine_with_gpus

from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS, choose_tensor_parallel_size
from worker.engine.run.description import chosen_defaults
from worker.engine.seam.locations import import_from_vllm
from worker.engine.start import Start
from worker.engine.start.steps import with_tensor_parallel_size

ONE_GPU = machine_with_gpus(1)


def automatic_choices(result: Start) -> dict[str, str]:
    choices = list(chosen_defaults(result.main_arguments))
    assert [str(one) for one in choices] == [f"{c.name}={c.value} ({c.reason})" for c in choices]
    return {choice.name: f"{choice.value}: {choice.reason}" for choice in choices}


def changed_defaults(arguments: Namespace) -> dict[str, Any]:
    """Return the arguments that differ from vLLM's defaults, without structured outputs."""
    assert arguments.structured_outputs_config.backend == "xgrammar"
    parser = import_from_vllm("make_arg_parser")(import_from_vllm("FlexibleArgumentParser")())
    own = vars(parser.parse_args([]))
    missing = object()
    return {
        name: value
        for name, value in vars(arguments).items()
        if own.get(name, missing) != value and name != "structured_outputs_config"
    }


CPU_ARGUMENTS = {
    "dtype": "float32",
    "enforce_eager": True,
    "worker_cls": "worker.engine.seam.cpu_worker.CPUWorker",
    "distributed_executor_backend": "uni",
}


@pytest.mark.parametrize(
    ("machine", "own"),
    [(ONE_GPU, {"gpu_memory_utilization": 0.95}), (CPU, CPU_ARGUMENTS)],
    ids=["gpu", "cpu"],
)
def test_most_defaults_are_vllms_own(machine: Machine, own: dict[str, Any], read: Read) -> None:
    named = {"model": "org/model", "served_model_name": ["org/model"], "max_model_len": -1}
    assert changed_defaults(read(machine).main_arguments.vllm_args) == {**named, **own}


@pytest.mark.parametrize(
    "source", [{}, {"DISABLE_LOG_STATS": "1"}, {"VLLM_EXTRA_ARGS": "--disable-log-stats"}], ids=str
)
def test_metrics_are_collected_even_if_statistics_are_not_logged(
    source: dict[str, str], read: Read
) -> None:
    assert read(**source).main_arguments.vllm_args.disable_log_stats is False


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
def test_either_name_of_the_setting_controls_the_logging_of_requests(
    settings: dict[str, str], logged: bool, read: Read
) -> None:
    assert read(**settings).main_arguments.vllm_args.enable_log_requests is logged


@pytest.mark.parametrize(
    ("machine", "settings", "size", "is_automatic"),
    [
        (machine_with_gpus(2), {}, 2, True),
        (machine_with_gpus(4), {"PIPELINE_PARALLEL_SIZE": "4"}, 1, True),
        (machine_with_gpus(8), {"DATA_PARALLEL_SIZE": "2", "PIPELINE_PARALLEL_SIZE": "2"}, 2, True),
        (machine_with_gpus(4), {"DATA_PARALLEL_SIZE": "3"}, 1, True),
        (machine_with_gpus(4), {"PREFILL_CONTEXT_PARALLEL_SIZE": "2"}, 2, True),
        (machine_with_gpus(4), {"VLLM_EXTRA_ARGS": "-pp 2"}, 2, True),
        (machine_with_gpus(4), {"TENSOR_PARALLEL_SIZE": "2"}, 2, False),
        (machine_with_gpus(4), {"VLLM_EXTRA_ARGS": "--tensor-parallel-size 2"}, 2, False),
        *((machine, {}, 1, False) for machine in (CPU, machine_with_gpus(0), ONE_GPU)),
    ],
    ids=lambda value: f"{len(value.gpus)} GPUs" if isinstance(value, Machine) else str(value),
)
def test_the_model_is_split_across_the_remaining_gpus_unless_a_size_is_set(
    machine: Machine, settings: dict[str, str], size: int, is_automatic: bool, read: Read
) -> None:
    result = read(machine, **settings)
    assert result.main_arguments.vllm_args.tensor_parallel_size == size
    choice = f"{size}: {len(machine.gpus)} GPUs in this machine" if is_automatic else None
    assert automatic_choices(result).get("TENSOR_PARALLEL_SIZE") == choice


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
    engines = read(machine_with_gpus(count), EMBEDDING_MODEL_NAME="org/e", **settings).engines
    assert [engine.vllm_args.tensor_parallel_size for engine in engines] == sizes
    assert [engine.vllm_args.gpu_memory_utilization for engine in engines] == shares


@pytest.mark.parametrize(
    ("gpu_count", "heads", "size"),
    [(4, 32, 4), (4, 14, 2), (8, 12, 6), (3, 4, 2), (2, 9, 1), (4, 0, 4)],
)
def test_attention_heads_are_split_across_as_many_gpus_as_possible(
    gpu_count: int, heads: int, size: int
) -> None:
    assert choose_tensor_parallel_size(gpu_count, heads) == size


@pytest.mark.parametrize(
    ("settings", "size", "choice"),
    [
        ({}, 2, "2: as many of 3 GPUs as can share its attention heads"),
        ({"TENSOR_PARALLEL_SIZE": "3"}, 3, None),
    ],
    ids=["unset", "set"],
)
def test_only_an_unset_size_is_reduced_to_fit_the_two_heads_of_the_model(
    settings: dict[str, str], size: int, choice: str | None, demo_model: Path, read: Read
) -> None:
    result = read(machine_with_gpus(3), MODEL_NAME=str(demo_model), **settings)
    arguments = with_tensor_parallel_size(result.main_arguments, result)
    assert arguments.vllm_args.tensor_parallel_size == size
    shown = {one.name: f"{one.value}: {one.reason}" for one in arguments.defaults}
    assert shown.get("TENSOR_PARALLEL_SIZE") == choice


@pytest.mark.parametrize("size", ["TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE"])
def test_several_processes_on_a_cpu_use_the_executor_of_vllm(size: str, read: Read) -> None:
    arguments = read(CPU, **{size: "2"}).main_arguments.vllm_args
    assert arguments.distributed_executor_backend is None


COMMON_CHOICES = {
    "MAX_MODEL_LEN": "auto: the longest context that fits into memory",
    "STRUCTURED_OUTPUTS_CONFIG": '{"backend": "xgrammar"}: one backend checks and compiles',
    "SERVED_MODEL_NAME": "org/model: MODEL_NAME",
    "TOKENIZER": "org/model: the model's own",
    "RUNPOD_LOG_LEVEL": "INFO: the SDK's own DEBUG prints every answer",
}
CPU_CHOICES = {
    "DTYPE": "float32: no GPU; bfloat16 is an illegal instruction on some CPUs",
    "ENFORCE_EAGER": "1: no GPU; there are no CUDA graphs to capture",
    "WORKER_CLS": "worker.engine.seam.cpu_worker.CPUWorker: "
    "no GPU; vLLM's own crashes on a seed with a long prompt",
    "DISTRIBUTED_EXECUTOR_BACKEND": "uni: one process starts fastest",
    **{name: f"{value}: no GPU" for name, value in CPU_EXPORTS.items()},
}
GPU_CHOICES = {"GPU_MEMORY_UTILIZATION": "0.95: the worker has the GPU to itself"}


@pytest.mark.parametrize(
    ("machine", "own"), [(CPU, CPU_CHOICES), (ONE_GPU, GPU_CHOICES)], ids=["cpu", "gpu"]
)
def test_every_default_has_a_reason(machine: Machine, own: dict[str, str], read: Read) -> None:
    assert automatic_choices(read(machine)) == COMMON_CHOICES | own


def test_the_path_of_a_model_is_never_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    (tmp_path / "version-2").mkdir()
    (tmp_path / "mine").symlink_to("version-2")
    monkeypatch.chdir(tmp_path / "version-2")
    for path in (f"{tmp_path}/mine/", "../mine", "../version-2/../mine"):
        choices = automatic_choices(read(CPU, MODEL_NAME=path))
        assert choices["SERVED_MODEL_NAME"] == "mine: the last part of MODEL_NAME"
        assert choices["TOKENIZER"] == "mine: the model's own"
        assert str(tmp_path) not in str(choices)
    assert read(CPU, MODEL_NAME=".").main_arguments.vllm_args.served_model_name == ["version-2"]


def test_the_snapshot_of_a_cache_has_the_name_of_its_repository(tmp_path: Path, read: Read) -> None:
    snapshot = tmp_path / "models--org--my-model" / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    choices = automatic_choices(read(CPU, MODEL_NAME=str(snapshot)))
    assert choices["SERVED_MODEL_NAME"] == "org/my-model: the repository of MODEL_NAME"


SERVED, TOKENIZER = ["mine", "org/model"], "org/words"


@pytest.mark.parametrize(
    ("machine", "settings", "name", "effective"),
    [
        (CPU, {"DTYPE": "bfloat16"}, "DTYPE", "bfloat16"),
        (CPU, {"ENFORCE_EAGER": "0"}, "ENFORCE_EAGER", False),
        (CPU, {"DISTRIBUTED_EXECUTOR_BACKEND": "mp"}, "DISTRIBUTED_EXECUTOR_BACKEND", "mp"),
        (CPU, {"WORKER_CLS": "mine.Worker"}, "WORKER_CLS", "mine.Worker"),
        (ONE_GPU, {"GPU_MEMORY_UTILIZATION": "0.5"}, "GPU_MEMORY_UTILIZATION", 0.5),
        # A setting may have any of its names.
        (CPU, {"OPENAI_SERVED_MODEL_NAME_OVERRIDE": "mine"}, "SERVED_MODEL_NAME", SERVED),
        (CPU, {"SERVED_MODEL_NAME": "mine"}, "SERVED_MODEL_NAME", SERVED),
        (CPU, {"VLLM_EXTRA_ARGS": "--served-model-name mine"}, "SERVED_MODEL_NAME", SERVED),
        (CPU, {"TOKENIZER_NAME": TOKENIZER}, "TOKENIZER", TOKENIZER),
        (CPU, {"VLLM_EXTRA_ARGS": f"--tokenizer {TOKENIZER}"}, "TOKENIZER", TOKENIZER),
        (CPU, {"SKIP_TOKENIZER_INIT": "1"}, "TOKENIZER", None),
    ],
    ids=str,
)
def test_a_set_value_overrides_the_automatic_choice(
    machine: Machine, settings: dict[str, str], name: str, effective: Any, read: Read
) -> None:
    result = read(machine, **settings)
    assert name not in automatic_choices(result)
    assert getattr(result.main_arguments.vllm_args, name.lower()) == effective
