"""Models of the endpoint, and endpoints of the account, with LLM Engine's names."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from llm_worker_client import account
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.errors import (
    DeployError,
    NoAnswer,
    NoEndpoint,
    Problem,
    Unhealthy,
)
from llm_worker_client.deploy.models import Models
from llm_worker_client.llm_engine import connection
from llm_worker_client.llm_engine.data_types import (
    LLMInferenceFramework,
    LLMSource,
    ModelEndpointType,
    PostInferenceHooks,
    Quantization,
)
from llm_worker_client.llm_engine.endpoint_types import (
    CreateLLMEndpointResponse,
    DeleteLLMEndpointResponse,
    DownloadModelResponse,
    GetLLMEndpointResponse,
    ListLLMEndpointsResponse,
    UpdateLLMEndpointResponse,
)
from llm_worker_client.llm_engine.errors import (
    BadRequestError,
    NotFoundError,
    ServerError,
    error_of,
)

MODELS = "/v1/llm/model-endpoints"
Hooks = list[PostInferenceHooks]


class Model:
    """Models that the endpoint serves; ``create`` and ``update`` are of whole endpoints.

    Errors are those of ``Completion.create``.
    """

    @classmethod
    def create(  # noqa: PLR0913, PLR0917 - LLM Engine's signature
        cls,
        name: str,
        model: str,
        inference_framework_image_tag: str,
        source: LLMSource = LLMSource.HUGGING_FACE,
        inference_framework: LLMInferenceFramework = LLMInferenceFramework.VLLM,
        num_shards: int = 1,
        quantize: Quantization | None = None,
        checkpoint_path: str | None = None,
        max_model_len: int | None = None,
        cpus: int | None = None,
        memory: str | None = None,
        storage: str | None = None,
        gpus: int | None = None,
        nodes_per_worker: int = 1,
        min_workers: int = 0,
        max_workers: int = 1,
        per_worker: int = 2,
        endpoint_type: ModelEndpointType = ModelEndpointType.STREAMING,
        gpu_type: str | None = None,
        high_priority: bool | None = False,
        post_inference_hooks: Hooks | None = None,
        default_callback_url: str | None = None,
        public_inference: bool | None = True,
        labels: dict[str, str] | None = None,
        request_headers: dict[str, str] | None = None,
    ) -> CreateLLMEndpointResponse:
        """Create an endpoint on the platform; what it can't have is refused by name.

        Returns:
            The endpoint's id.
        """
        given = _arguments(locals())
        if connection.CONNECTION.image is None:
            raise BadRequestError("image: call configure(image=…) with the worker's image")
        with _models() as models:
            return CreateLLMEndpointResponse(endpoint_creation_task_id=models.create(**given))

    @classmethod
    def update(  # noqa: PLR0913, PLR0917 - LLM Engine's signature
        cls,
        name: str,
        model: str | None = None,
        inference_framework_image_tag: str | None = None,
        source: LLMSource | None = None,
        num_shards: int | None = None,
        quantize: Quantization | None = None,
        checkpoint_path: str | None = None,
        cpus: int | None = None,
        memory: str | None = None,
        storage: str | None = None,
        gpus: int | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        per_worker: int | None = None,
        endpoint_type: ModelEndpointType | None = None,
        gpu_type: str | None = None,
        high_priority: bool | None = None,
        post_inference_hooks: Hooks | None = None,
        default_callback_url: str | None = None,
        public_inference: bool | None = None,
        labels: dict[str, str] | None = None,
        request_headers: dict[str, str] | None = None,
    ) -> UpdateLLMEndpointResponse:
        """Change the passed values of an endpoint on the platform.

        Returns:
            The endpoint's id.
        """
        given = _arguments(locals())
        with _models() as models:
            return UpdateLLMEndpointResponse(endpoint_creation_task_id=models.update(**given))

    @classmethod
    def get(
        cls, model: str, request_headers: dict[str, str] | None = None
    ) -> GetLLMEndpointResponse:
        """Return a model that the endpoint serves."""
        connection.refuse_headers(request_headers)
        return GetLLMEndpointResponse.model_validate(connection.call("GET", _of(model)))

    @classmethod
    def list(cls, request_headers: dict[str, str] | None = None) -> ListLLMEndpointsResponse:
        """Return the models that the endpoint serves."""
        connection.refuse_headers(request_headers)
        return ListLLMEndpointsResponse.model_validate(connection.call("GET", MODELS))

    @classmethod
    def delete(
        cls, model_endpoint_name: str, request_headers: dict[str, str] | None = None
    ) -> DeleteLLMEndpointResponse:
        """Delete an endpoint that ``create`` made, else an adapter; nothing else is deleted."""
        connection.refuse_headers(request_headers)
        if _deleted(model_endpoint_name):
            return DeleteLLMEndpointResponse(deleted=True)
        if not (connection.CONNECTION.endpoint_id or account.endpoint_id()):
            raise NotFoundError(f"there is no endpoint {model_endpoint_name} that create made")
        deleted = connection.call("DELETE", _of(model_endpoint_name))
        return DeleteLLMEndpointResponse.model_validate(deleted)

    @classmethod
    def download(
        cls, model_name: str, download_format: str = "hugging_face"
    ) -> DownloadModelResponse:
        """Refuse: a job holds no file of an adapter; the message says where it is."""
        body = {"model_name": model_name, "download_format": download_format}
        found = connection.call("POST", f"{MODELS}/download", body)
        return DownloadModelResponse.model_validate(found)


def _of(name: str) -> str:
    return f"{MODELS}/{quote(name)}"


def _deleted(name: str) -> bool:
    """Delete the endpoint that ``create`` made under a name; return whether there is one."""
    given = connection.CONNECTION
    if given.api_url is None and (given.base_url or account.base_url()) != account.PLATFORM:
        # Behind another address there are no endpoints of the account.
        return False
    with _models() as models:
        return models.delete(name)


def _arguments(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "cls"}


@contextmanager
def _models() -> Iterator[Models]:
    """Open the account's endpoints; what goes wrong is raised as LLM Engine's errors."""
    given = connection.CONNECTION
    key, queue_url = given.api_key or account.api_key(), given.base_url or account.PLATFORM
    try:
        with closing(Api(key, given.api_url or API_URL, queue_url)) as api:
            yield Models(api, given.image or "")
    except Problem as problem:
        raise error_of(problem.status, str(problem)) from None
    except NoEndpoint as missing:
        raise NotFoundError(str(missing)) from None
    except (NoAnswer, Unhealthy) as lost:
        raise ServerError(502, str(lost)) from None
    except DeployError as wrong:
        raise BadRequestError(str(wrong)) from None
