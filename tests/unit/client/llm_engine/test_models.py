"""LLM Engine's models as endpoints of the platform, and the imports of its classes."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.runpod_api.server import KEY, Fault, Runpod, runpod_api

from llm_worker_client import Model, configure
from llm_worker_client.llm_engine import (
    LLMInferenceFramework,
    PostInferenceHooks,
    Quantization,
    connection,
    errors,
)

NAME = "llama-2-7b-test"
BASE: dict[str, Any] = {
    "name": NAME,
    "model": "llama-2-7b",
    "inference_framework_image_tag": "latest",
    "checkpoint_path": "meta-llama/Llama-2-7b-hf",
    "gpu_type": "nvidia-ampere-a10",
}


@pytest.fixture
def runpod() -> Iterator[Runpod]:
    with runpod_api() as running:
        configure_platform(running)
        yield running
    configure()


def configure_platform(runpod: Runpod, key: str = KEY, image: str | None = "me/llm-worker") -> None:
    configure("any", key, f"{runpod.url}/queue", api_url=f"{runpod.url}/v2", image=image)


def only_endpoint(runpod: Runpod) -> dict[str, Any]:
    (endpoint,) = runpod.endpoints.values()
    return endpoint


def test_a_model_is_created_changed_and_deleted_as_an_endpoint(runpod: Runpod) -> None:
    created = Model.create(**BASE)
    ((identity, endpoint),) = runpod.endpoints.items()
    assert created.endpoint_creation_task_id == identity
    assert endpoint["image"] == "me/llm-worker:stable"
    assert endpoint["env"]["MODEL_NAME"] == "meta-llama/Llama-2-7b-hf"
    assert Model.update(NAME, max_workers=2).endpoint_creation_task_id == identity
    (changed,) = runpod.endpoints.values()
    assert (changed["workers"]["max"], changed["image"]) == (2, endpoint["image"])
    assert Model.delete(NAME).deleted
    assert runpod.endpoints == {}
    configure(None, KEY, api_url=f"{runpod.url}/v2")
    with pytest.raises(errors.NotFoundError, match=NAME):
        Model.delete(NAME)


def test_a_model_that_is_not_an_endpoint_is_deleted_as_an_adapter(runpod: Runpod) -> None:
    runpod.add(name="fairy-tales")
    # The platform has no endpoint that could know the adapter.
    with pytest.raises(errors.NotFoundError):
        Model.delete("fairy-tales")
    assert [call.path for call in runpod.calls][1:] == ["/queue/any/run"]
    assert len(runpod.endpoints) == 1


def test_the_key_is_neither_in_errors_nor_in_a_connections_repr(runpod: Runpod) -> None:
    assert KEY not in repr(connection.CONNECTION)
    runpod.faults.append(Fault("GET", 409, detail=f"Bearer {KEY}", errors=[KEY]))
    with pytest.raises(errors.BadRequestError, match=r"Bearer \*\*\*") as raised:
        Model.create(**BASE)
    assert KEY not in str(raised.value)


def test_a_missing_image_is_refused(runpod: Runpod) -> None:
    configure_platform(runpod, image=None)
    with pytest.raises(errors.BadRequestError, match=r"^image: "):
        Model.create(**BASE)
    assert runpod.changes == []


def test_the_platforms_refusals_have_their_error_classes(runpod: Runpod) -> None:
    with pytest.raises(errors.NotFoundError, match="missing"):
        Model.update("missing", max_workers=2)
    runpod.add(name=NAME)
    with pytest.raises(errors.BadRequestError, match="there is an endpoint"):
        Model.create(**BASE)
    configure_platform(runpod, key="rpa_wrong")
    with pytest.raises(errors.UnauthorizedError):
        Model.update(NAME, max_workers=2)


def test_the_model_of_the_references_example_becomes_an_endpoint(
    runpod: Runpod,
) -> None:
    with pytest.warns(UserWarning, match="has no effect") as warnings:
        created = Model.create(
            name="llama-2-13b-test",
            model="llama-2-13b",
            inference_framework_image_tag="0.2.1.post1",
            inference_framework=LLMInferenceFramework.VLLM,
            num_shards=2,
            checkpoint_path="s3://path/to/checkpoint",
            cpus=16,
            memory="48Gi",
            storage="80Gi",
            gpus=2,
            per_worker=10,
            gpu_type="nvidia-ampere-a10",
            public_inference=False,
        )
    assert sorted(str(one.message).split()[0] for one in warnings) == ["cpus", "memory"]
    endpoint = only_endpoint(runpod)
    assert (endpoint["id"], endpoint["image"]) == (
        created.endpoint_creation_task_id,
        "me/llm-worker:0.2.1.post1",
    )
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
    runpod: Runpod,
) -> None:
    other = {"inference_framework": "text_generation_inference", "gpu_type": None, "num_shards": 4}
    with pytest.warns(UserWarning, match="this worker uses vLLM"):
        Model.create(**BASE | {"model": "llama-2-70b"} | other)
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
        ({"post_inference_hooks": [PostInferenceHooks.CALLBACK]}, "post_inference_hooks"),
        ({"request_headers": {"a": "b"}}, "request_headers"),
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
    runpod: Runpod, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(errors.BadRequestError, match=f"^{name}: "):
        Model.create(**BASE | arguments)
    assert runpod.changes == []


def test_a_default_callback_causes_a_warning_that_names_webhooks(
    runpod: Runpod,
) -> None:
    with pytest.warns(UserWarning, match="default_callback_url .* its own webhook"):
        Model.create(**BASE, default_callback_url="https://example.com")


def test_high_priority_keeps_a_worker_up(runpod: Runpod) -> None:
    Model.create(**BASE, high_priority=True, quantize=Quantization.AWQ, max_model_len=4096)
    assert only_endpoint(runpod)["workers"] == {"min": 1, "max": 1}
    env = only_endpoint(runpod)["env"]
    assert (env["QUANTIZATION"], env["MAX_MODEL_LEN"]) == ("awq", "4096")


def test_an_update_changes_only_its_arguments(runpod: Runpod) -> None:
    Model.create(**BASE)
    before = {**only_endpoint(runpod)}
    Model.update(name=NAME, max_workers=4, per_worker=8)
    after = only_endpoint(runpod)
    assert after["workers"] == {"min": 0, "max": 4}
    assert after["scaling"]["requestCount"] == 8
    assert after["env"] == before["env"] | {"MAX_CONCURRENCY": "16"}
    same = ("image", "gpu", "disk", "timeout", "flashboot")
    assert [after[key] for key in same] == [before[key] for key in same]
    runpod.calls.clear()
    Model.update(name=NAME, max_workers=4)
    assert runpod.changes == []
    # The endpoint is still one that was created as a model.
    assert Model.delete(NAME).deleted
    assert runpod.endpoints == {}


def test_an_update_of_an_endpoint_from_the_console_keeps_the_rest(
    runpod: Runpod,
) -> None:
    gpu = {"pools": ["ADA_24"], "count": 1, "allowedCudaVersions": ["12.8"], "minCudaVersion": None}
    runpod.add(name="chat", gpu=gpu, env={"MODEL_NAME": "a/b"}, image="host:5000/worker")
    Model.update(name="chat", inference_framework_image_tag="2", gpus=2)
    endpoint = only_endpoint(runpod)
    assert (endpoint["image"], endpoint["gpu"]) == ("host:5000/worker:2", gpu | {"count": 2})
    assert endpoint["scaling"]["type"] == "QUEUE_DELAY"


@pytest.mark.parametrize("env", [{}, {"LLM_ENGINE_MODEL": "another"}])
def test_only_an_endpoint_created_as_this_model_is_deleted(
    runpod: Runpod, env: dict[str, str]
) -> None:
    runpod.add(name="chat", env=env)
    configure(None, KEY, api_url=f"{runpod.url}/v2")
    with pytest.raises(errors.NotFoundError, match="no endpoint chat that create made"):
        Model.delete("chat")
    assert len(runpod.endpoints) == 1


def test_a_key_that_may_not_list_endpoints_deletes_none(runpod: Runpod) -> None:
    runpod.faults.append(Fault("GET", 403))
    configure(None, KEY, api_url=f"{runpod.url}/v2")
    with pytest.raises(errors.NotFoundError, match="no endpoint chat that create made"):
        Model.delete("chat")


def test_a_refused_deletion_is_an_error(runpod: Runpod) -> None:
    Model.create(**BASE)
    runpod.faults.append(Fault("DELETE", 403))
    with pytest.raises(errors.BadRequestError):
        Model.delete(NAME)


def test_an_endpoint_that_may_cost_after_a_failure_is_logged_as_a_warning(
    runpod: Runpod, caplog: pytest.LogCaptureFixture
) -> None:
    runpod.faults.append(Fault("POST", 503))
    with pytest.raises(errors.ServerError):
        Model.create(**BASE)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "check in the console" in caplog.text


def test_the_package_loads_pydantic_only_for_the_classes() -> None:
    script = "import sys, llm_worker_client as c; print('pydantic' in sys.modules)"
    script += "; c.Completion; print('pydantic' in sys.modules)"
    environ = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
