"""LLM Engine's arguments as requests to the platform."""

from typing import Any

import pytest
from support.runpod_api.server import Fault, Runpod

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import ApiError, PlanError
from llm_worker_client.deploy.models import ModelEndpoints

NAME = "llama-2-7b-test"
BASE = {
    "name": NAME,
    "model": "llama-2-7b",
    "inference_framework_image_tag": "latest",
    "checkpoint_path": "meta-llama/Llama-2-7b-hf",
    "gpu_type": "nvidia-ampere-a10",
}


@pytest.fixture
def llm_models(api: Api) -> ModelEndpoints:
    return ModelEndpoints(api, "me/llm-worker")


def only_endpoint(runpod: Runpod) -> dict[str, Any]:
    (endpoint,) = runpod.endpoints.values()
    return endpoint


def test_the_model_of_the_references_example_becomes_an_endpoint(
    llm_models: ModelEndpoints, runpod: Runpod
) -> None:
    with pytest.warns(UserWarning, match="has no effect") as warnings:
        identity = llm_models.create(
            **{"name": "llama-2-13b-test", "model": "llama-2-13b", "num_shards": 2},
            **{"inference_framework": "vllm", "inference_framework_image_tag": "0.2.1.post1"},
            **{"checkpoint_path": "s3://path/to/checkpoint", "gpu_type": "nvidia-ampere-a10"},
            **{"cpus": 16, "memory": "48Gi", "storage": "80Gi", "gpus": 2},
            **{"min_workers": 0, "max_workers": 1, "per_worker": 10},
            **{"endpoint_type": "streaming", "public_inference": False},
        )
    assert sorted(str(one.message).split()[0] for one in warnings) == ["cpus", "memory"]
    endpoint = only_endpoint(runpod)
    assert (endpoint["id"], endpoint["image"]) == (identity, "me/llm-worker:0.2.1.post1")
    assert (endpoint["gpu"]["pools"], endpoint["gpu"]["count"]) == (["AMPERE_24"], 2)
    assert (endpoint["disk"], endpoint["workers"]) == (80, {"min": 0, "max": 1})
    assert endpoint["scaling"] == {"type": "REQUEST_COUNT", "requestCount": 10}
    assert endpoint["env"] == {
        "MODEL_NAME": "s3://path/to/checkpoint",
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "llama-2-13b-test",
        "TENSOR_PARALLEL_SIZE": "2",
        "MAX_CONCURRENCY": "20",
        "RUNPOD_INIT_TIMEOUT": "1200",
        "LLM_ENGINE_MODEL": "llama-2-13b-test",
    }


def test_another_framework_causes_a_warning_and_is_served_by_vllm(
    llm_models: ModelEndpoints, runpod: Runpod
) -> None:
    other = {"inference_framework": "text_generation_inference", "gpu_type": None, "num_shards": 4}
    with pytest.warns(UserWarning, match="this worker uses vLLM"):
        llm_models.create(**BASE | {"model": "llama-2-70b"} | other)
    endpoint = only_endpoint(runpod)
    assert endpoint["image"] == "me/llm-worker:stable"
    assert (endpoint["gpu"]["pools"], endpoint["gpu"]["count"]) == (["AMPERE_48", "ADA_48_PRO"], 4)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"gpu_type": "nvidia-hopper-h100-1g20gb"}, "gpu_type"),
        ({"gpu_type": None, "model": "a", "checkpoint_path": "a/b"}, "gpu_type"),
        ({"gpu_type": None, "model": "llama-2-405b"}, "num_shards"),
        ({"nodes_per_worker": 2}, "nodes_per_worker"),
        ({"post_inference_hooks": ["callback"]}, "post_inference_hooks"),
        ({"source": "s3"}, "source"),
        ({"endpoint_type": "async"}, "endpoint_type"),
        ({"quantize": "bitsandbytes"}, "quantize"),
        ({"gpus": 1, "num_shards": 2}, "gpus"),
        ({"checkpoint_path": None}, "checkpoint_path"),
        ({"checkpoint_path": "https://huggingface.co/a/b"}, "checkpoint_path"),
        ({"storage": "much"}, "storage"),
        ({"min_workers": 2}, "min_workers"),
        ({"max_workers": -1, "min_workers": -1}, "min_workers"),
        ({"num_shards": 0}, "num_shards"),
        ({"per_worker": 0}, "per_worker"),
        ({"max_workers": "2"}, "max_workers"),
    ],
)
def test_an_invalid_argument_is_refused_by_name(
    llm_models: ModelEndpoints, runpod: Runpod, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(PlanError, match=f"^{name}: "):
        llm_models.create(**BASE | arguments)
    assert runpod.changes == []


def test_a_default_callback_causes_a_warning_that_names_webhooks(
    llm_models: ModelEndpoints,
) -> None:
    with pytest.warns(UserWarning, match="default_callback_url .* its own webhook"):
        llm_models.create(**BASE, default_callback_url="https://example.com")


def test_high_priority_keeps_a_worker_up(llm_models: ModelEndpoints, runpod: Runpod) -> None:
    llm_models.create(**BASE, high_priority=True, quantize="awq", max_model_len=4096)
    assert only_endpoint(runpod)["workers"] == {"min": 1, "max": 1}
    env = only_endpoint(runpod)["env"]
    assert (env["QUANTIZATION"], env["MAX_MODEL_LEN"]) == ("awq", "4096")


def test_an_update_changes_only_its_arguments(llm_models: ModelEndpoints, runpod: Runpod) -> None:
    llm_models.create(**BASE)
    before = {**only_endpoint(runpod)}
    llm_models.update(name=NAME, max_workers=4, per_worker=8)
    after = only_endpoint(runpod)
    assert after["workers"] == {"min": 0, "max": 4}
    assert after["scaling"]["requestCount"] == 8
    assert after["env"] == before["env"] | {"MAX_CONCURRENCY": "16"}
    same = ("image", "gpu", "disk", "timeout", "flashboot")
    assert [after[key] for key in same] == [before[key] for key in same]
    runpod.calls.clear()
    llm_models.update(name=NAME, max_workers=4)
    assert runpod.changes == []
    # The endpoint is still one that was created as a model.
    assert llm_models.delete(NAME)
    assert runpod.endpoints == {}


def test_an_update_of_an_endpoint_from_the_console_keeps_the_rest(
    llm_models: ModelEndpoints, runpod: Runpod
) -> None:
    gpu = {"pools": ["ADA_24"], "count": 1, "allowedCudaVersions": ["12.8"], "minCudaVersion": None}
    runpod.add(name="chat", gpu=gpu, env={"MODEL_NAME": "a/b"}, image="host:5000/worker")
    llm_models.update(name="chat", inference_framework_image_tag="2", gpus=2)
    endpoint = only_endpoint(runpod)
    assert (endpoint["image"], endpoint["gpu"]) == ("host:5000/worker:2", gpu | {"count": 2})
    assert endpoint["scaling"]["type"] == "QUEUE_DELAY"


@pytest.mark.parametrize("env", [{}, {"LLM_ENGINE_MODEL": "another"}])
def test_only_an_endpoint_created_as_this_model_is_deleted(
    llm_models: ModelEndpoints, runpod: Runpod, env: dict[str, str]
) -> None:
    runpod.add(name="chat", env=env)
    assert not llm_models.delete("chat")
    assert len(runpod.endpoints) == 1


def test_a_key_that_may_not_list_endpoints_deletes_none(
    llm_models: ModelEndpoints, runpod: Runpod
) -> None:
    runpod.faults.append(Fault("GET", 403))
    assert not llm_models.delete("chat")


def test_a_refused_deletion_is_an_error(llm_models: ModelEndpoints, runpod: Runpod) -> None:
    llm_models.create(**BASE)
    runpod.faults.append(Fault("DELETE", 403))
    with pytest.raises(ApiError):
        llm_models.delete(NAME)


def test_an_endpoint_that_may_cost_after_a_failure_is_logged_as_a_warning(
    llm_models: ModelEndpoints, runpod: Runpod, caplog: pytest.LogCaptureFixture
) -> None:
    runpod.faults.append(Fault("POST", 503))
    with pytest.raises(ApiError):
        llm_models.create(**BASE)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "check in the console" in caplog.text
