"""LLM Engine's models as endpoints of the platform, and what importing its classes loads."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.runpod_api.server import KEY, Fault, Platform, platform

from llm_worker_client import Model, configure
from llm_worker_client.llm_engine import (
    LLMInferenceFramework,
    PostInferenceHooks,
    connection,
    errors,
)

BASE: dict[str, Any] = {
    "name": "llama-2-7b-test",
    "model": "llama-2-7b",
    "inference_framework_image_tag": "0.2.1.post1",
    "inference_framework": LLMInferenceFramework.VLLM,
    "checkpoint_path": "s3://path/to/checkpoint",
    "gpus": 1,
    "gpu_type": "nvidia-ampere-a10",
    "per_worker": 10,
}


@pytest.fixture
def there() -> Iterator[Platform]:
    with platform() as running:
        set_up(running)
        yield running
    configure()


def set_up(there: Platform, key: str = KEY, image: str | None = "me/llm-worker") -> None:
    address = f"{there.url}/v2"
    configure("any", key, f"{there.url}/queue", api_url=address, image=image)


def test_a_model_is_created_and_changed_as_an_endpoint(there: Platform) -> None:
    created = Model.create(**BASE)
    ((identity, endpoint),) = there.endpoints.items()
    assert created.endpoint_creation_task_id == identity
    assert endpoint["image"] == "me/llm-worker:0.2.1.post1"
    assert endpoint["env"]["MODEL_NAME"] == "s3://path/to/checkpoint"
    assert Model.update("llama-2-7b-test", max_workers=2).endpoint_creation_task_id == identity
    (changed,) = there.endpoints.values()
    assert changed["workers"]["max"] == 2
    assert changed["image"] == endpoint["image"]


def test_what_was_created_is_deleted_by_its_name(there: Platform) -> None:
    Model.create(**BASE)
    assert Model.delete("llama-2-7b-test").deleted
    assert there.endpoints == {}
    configure(None, KEY, api_url=f"{there.url}/v2")
    with pytest.raises(errors.NotFoundError, match="llama-2-7b-test"):
        Model.delete("llama-2-7b-test")


def test_another_name_is_that_of_an_adapter(there: Platform) -> None:
    there.add(name="fairy-tales")
    # The endpoint that would know the adapter is none that this platform has.
    with pytest.raises(errors.NotFoundError):
        Model.delete("fairy-tales")
    assert [call.path for call in there.calls][1:] == ["/queue/any/run"]
    assert len(there.endpoints) == 1


def test_the_key_is_not_in_what_a_connection_shows(there: Platform) -> None:
    assert KEY not in repr(connection.CONNECTION)


def test_the_key_is_in_no_error(there: Platform) -> None:
    there.faults.append(Fault("GET", 409, detail=f"Bearer {KEY}", errors=[KEY]))
    with pytest.raises(errors.BadRequestError) as raised:
        Model.create(**BASE)
    assert KEY not in str(raised.value)
    assert "Bearer ***" in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes_per_worker": 2}, "nodes_per_worker"),
        ({"post_inference_hooks": [PostInferenceHooks.CALLBACK]}, "post_inference_hooks"),
        ({"quantize": "bitsandbytes"}, "quantize"),
        ({"request_headers": {"a": "b"}}, "request_headers"),
    ],
)
def test_what_an_endpoint_cannot_have_is_refused_by_name(
    there: Platform, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.BadRequestError, match=message):
        Model.create(**BASE | wrong)
    assert there.endpoints == {}


def test_the_platforms_refusals_are_errors_by_class(there: Platform) -> None:
    with pytest.raises(errors.NotFoundError, match="missing"):
        Model.update("missing", max_workers=2)
    Model.create(**BASE)
    with pytest.raises(errors.BadRequestError, match="there is an endpoint"):
        Model.create(**BASE)
    set_up(there, key="rpa_wrong")
    with pytest.raises(errors.UnauthorizedError):
        Model.update("llama-2-7b-test", max_workers=2)


def test_creating_needs_the_workers_image(there: Platform) -> None:
    set_up(there, image=None)
    with pytest.raises(errors.BadRequestError, match="image"):
        Model.create(**BASE)
    assert there.endpoints == {}


def test_the_package_loads_pydantic_only_for_the_classes() -> None:
    script = "import sys, llm_worker_client as c; print('pydantic' in sys.modules)"
    script += "; c.Completion; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]
