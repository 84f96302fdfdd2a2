"""LLM Engine's models as endpoints of the platform, and the imports of its classes."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.runpod_api.server import KEY, Fault, Runpod, runpod_api

from llm_worker_client import Model, configure
from llm_worker_client.llm_engine import PostInferenceHooks, connection, errors

NAME = "llama-2-7b-test"
BASE: dict[str, Any] = {
    "name": NAME,
    "model": "llama-2-7b",
    "inference_framework_image_tag": "0.2.1.post1",
    "checkpoint_path": "s3://path/to/checkpoint",
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


def test_a_model_is_created_changed_and_deleted_as_an_endpoint(runpod: Runpod) -> None:
    created = Model.create(**BASE)
    ((identity, endpoint),) = runpod.endpoints.items()
    assert created.endpoint_creation_task_id == identity
    assert endpoint["image"] == "me/llm-worker:0.2.1.post1"
    assert endpoint["env"]["MODEL_NAME"] == "s3://path/to/checkpoint"
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


@pytest.mark.parametrize(
    ("wrong", "image", "message"),
    [
        ({"post_inference_hooks": [PostInferenceHooks.CALLBACK]}, "i", "post_inference_hooks"),
        ({"request_headers": {"a": "b"}}, "i", "request_headers"),
        ({}, None, "image"),
    ],
)
def test_an_unsupported_or_missing_argument_is_refused_by_name(
    runpod: Runpod, wrong: dict[str, Any], image: str | None, message: str
) -> None:
    configure_platform(runpod, image=image)
    with pytest.raises(errors.BadRequestError, match=message):
        Model.create(**BASE | wrong)
    assert runpod.endpoints == {}


def test_the_platforms_refusals_have_their_error_classes(runpod: Runpod) -> None:
    with pytest.raises(errors.NotFoundError, match="missing"):
        Model.update("missing", max_workers=2)
    runpod.add(name=NAME)
    with pytest.raises(errors.BadRequestError, match="there is an endpoint"):
        Model.create(**BASE)
    configure_platform(runpod, key="rpa_wrong")
    with pytest.raises(errors.UnauthorizedError):
        Model.update(NAME, max_workers=2)


def test_the_package_loads_pydantic_only_for_the_classes() -> None:
    script = "import sys, llm_worker_client as c; print('pydantic' in sys.modules)"
    script += "; c.Completion; print('pydantic' in sys.modules)"
    environ = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
