"""The settings that a start reads, with vLLM's own parser; no engine is started."""

from argparse import Namespace
from pathlib import Path

import pytest
from support.settings import read_settings

from worker import start
from worker.engine.configuring import with_fitting_tensor_parallel_size
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.engine.options.declared import plugged
from worker.settings.mistakes import SettingsError


def parsed(**environ: str) -> Namespace:
    return Options().parse({"MODEL": "org/name", **environ}).vllm


# One model or two:


def read(**environ: str) -> start.Start:
    return read_settings({"MODEL_NAME": "org/model", **environ})


def test_a_worker_with_one_model_has_no_embedder() -> None:
    result = read(SEED="7", EMBEDDING_SEED="8")
    assert (result.embedder, result.arguments.vllm.model, result.arguments.vllm.seed) == (
        None,
        "org/model",
        7,
    )
    assert "MAX_MODEL_LEN" in result.options


def test_an_embedder_has_settings_of_its_own_and_the_pooling_runner() -> None:
    result = read(SEED="7", EMBEDDING_MODEL_NAME="org/minilm", EMBEDDING_SEED="8")
    assert result.embedder is not None
    assert (result.arguments.vllm.model, result.arguments.vllm.seed) == ("org/model", 7)
    assert (result.embedder.vllm.model, result.embedder.vllm.seed) == ("org/minilm", 8)
    assert (result.arguments.vllm.runner, result.embedder.vllm.runner) == ("auto", "pooling")


def test_an_operator_may_set_the_embedders_runner() -> None:
    result = read(EMBEDDING_MODEL_NAME="org/minilm", EMBEDDING_RUNNER="auto")
    assert result.embedder is not None
    assert result.embedder.vllm.runner == "auto"


def test_mistakes_in_all_settings_are_reported_together() -> None:
    with pytest.raises(SettingsError) as refused:
        read(
            MAX_CONCURRENCY="0",
            SEED="x",
            GPU_MEMORY_UTILIZATION="0.95",
            EMBEDDING_MODEL_NAME="org/minilm",
            EMBEDDING_SEED="y",
        )
    assert [mistake.name for mistake in refused.value.mistakes] == [
        "EMBEDDING_SEED",
        "GPU_MEMORY_UTILIZATION",
        "MAX_CONCURRENCY",
        "SEED",
    ]


GPU = Machine(cpu=False, gpus=(Gpu("GPU", 80 << 30),))


def test_on_a_gpu_every_engine_has_its_share() -> None:
    def shares(**environ: str) -> tuple[float, float]:
        both = read_settings({"MODEL_NAME": "org/model", **environ}, GPU)
        embedders = both.embedder.vllm.gpu_memory_utilization if both.embedder else 0
        return both.arguments.vllm.gpu_memory_utilization, embedders

    two = {"EMBEDDING_MODEL_NAME": "org/minilm"}
    assert shares() == (0.95, 0)
    assert shares(**two) == (0.85, 0.1)
    assert shares(**two, EMBEDDING_GPU_MEMORY_UTILIZATION="0.2") == (0.75, 0.2)


# Served names:


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
        (adapter,) = parsed(ENABLE_LORA="1", LORA_MODULES=given_value).lora_modules
        assert (adapter.name, adapter.path) == ("a", "org/a")


# Values that are accepted, and variables that are ignored:

# Variables that the base image, the platform and libraries set.
AROUND = """
    CUDA_HOME CUDA_VERSION CURL_CA_BUNDLE DEBIAN_FRONTEND GPG_KEY HF_HUB_ENABLE_HF_TRANSFER HOME
    HOSTNAME JUPYTER_PASSWORD LANG LC_ALL LD_LIBRARY_PATH LIBRARY_PATH MKL_NUM_THREADS NCCL_DEBUG
    NVARCH NVIDIA_DRIVER_CAPABILITIES NVIDIA_PRODUCT_NAME NVIDIA_REQUIRE_CUDA
    NVIDIA_VISIBLE_DEVICES NV_CUDA_LIB_VERSION PATH PIP_NO_CACHE_DIR PUBLIC_KEY PWD
    PYTHONUNBUFFERED PYTHON_VERSION PYTORCH_CUDA_ALLOC_CONF REQUESTS_CA_BUNDLE RUNPOD_AI_API_KEY
    RUNPOD_API_KEY RUNPOD_CPU_COUNT RUNPOD_DC_ID RUNPOD_ENDPOINT_ID RUNPOD_GPU_COUNT
    RUNPOD_GPU_NAME RUNPOD_GPU_SIZE RUNPOD_MEM_GB RUNPOD_NETWORK_VOLUME_ID RUNPOD_PING_INTERVAL
    RUNPOD_POD_HOSTNAME RUNPOD_POD_ID RUNPOD_PUBLIC_IP RUNPOD_REALTIME_PORT RUNPOD_TCP_PORT_22
    RUNPOD_VOLUME_ID RUNPOD_WEBHOOK_GET_JOB RUNPOD_WEBHOOK_PING RUNPOD_WEBHOOK_POST_OUTPUT SHELL
    SHLVL SSL_CERT_DIR SSL_CERT_FILE TERM TMPDIR TOKENIZERS_PARALLELISM TORCH_CUDA_ARCH_LIST TZ
    USER UV_HTTP_TIMEOUT UV_LINK_MODE VLLM_USAGE_SOURCE VIRTUAL_ENV
"""


def test_variables_that_are_not_settings_are_ignored() -> None:
    assert read(**dict.fromkeys(AROUND.split(), "1")).warnings == ()


def test_choices_are_accepted_in_any_case() -> None:
    assert parsed(DTYPE="HALF").dtype == "half"


def test_a_vllm_plugin_may_bring_names_that_vllm_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plugged()
    with pytest.raises(SettingsError, match="LOAD_FORMAT"):
        parsed(LOAD_FORMAT="mine")
    about = tmp_path / "a_plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nmine = a_plugin:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugged.cache_clear()
    try:
        assert parsed(LOAD_FORMAT="mine").load_format == "mine"
    finally:
        monkeypatch.undo()
        plugged.cache_clear()


# Tensor parallel sizes:


def test_only_an_unset_size_is_made_to_fit(demo_model: Path) -> None:
    options = Options(Machine(cpu=False, gpus=(Gpu("GPU", 80 << 30),) * 4))
    # The demo model has two heads.
    unset = with_fitting_tensor_parallel_size(options.parse({"MODEL": str(demo_model)}))
    assert unset.vllm.tensor_parallel_size == 2
    chosen = options.parse({"MODEL": str(demo_model), "TENSOR_PARALLEL_SIZE": "4"})
    assert with_fitting_tensor_parallel_size(chosen).vllm.tensor_parallel_size == 4


def test_the_size_that_was_made_to_fit_is_reported(demo_model: Path) -> None:
    options = Options(Machine(cpu=False, gpus=(Gpu("GPU", 80 << 30),) * 3))
    arguments = with_fitting_tensor_parallel_size(options.parse({"MODEL": str(demo_model)}))
    assert arguments.vllm.tensor_parallel_size == 2
    (chosen,) = [
        str(choice) for choice in arguments.defaults if choice.name == "TENSOR_PARALLEL_SIZE"
    ]
    assert chosen == ("TENSOR_PARALLEL_SIZE=2 (as many of 3 GPUs as can share its attention heads)")
