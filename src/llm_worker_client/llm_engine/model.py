"""LLM Engine's class ``Model``, for an endpoint's models and an account's endpoints."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from llm_worker_client import account
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.errors import (
    ApiError,
    DeployError,
    EndpointUnhealthy,
    NoEndpoint,
    NoResponse,
)
from llm_worker_client.deploy.models import ModelEndpoints
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
    error_for_status,
)

MODELS_PATH = "/v1/llm/model-endpoints"
Hooks = list[PostInferenceHooks]


class Model:
    """The models that the endpoint serves; ``create``, ``update`` and ``delete`` manage endpoints.

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
        """Create an endpoint on the platform and return its id as ``endpoint_creation_task_id``.

        Raises:
            BadRequestError: If an argument is unsupported, no image is configured, or the endpoint
                exists.
        """
        arguments = _without_cls(locals())
        if connection.CONNECTION.image is None:
            raise BadRequestError("image: call configure(image=…) with the worker's image")
        with _open_model_endpoints() as endpoints:
            endpoint_id = endpoints.create(**arguments)
        return CreateLLMEndpointResponse(endpoint_creation_task_id=endpoint_id)

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
        """Change the passed options of an endpoint on the platform and return its id."""
        arguments = _without_cls(locals())
        with _open_model_endpoints() as endpoints:
            endpoint_id = endpoints.update(**arguments)
        return UpdateLLMEndpointResponse(endpoint_creation_task_id=endpoint_id)

    @classmethod
    def get(
        cls, model: str, request_headers: dict[str, str] | None = None
    ) -> GetLLMEndpointResponse:
        """Return a model or an adapter that the endpoint serves."""
        connection.refuse_request_headers(request_headers)
        return GetLLMEndpointResponse.model_validate(connection.call("GET", _model_path(model)))

    @classmethod
    def list(cls, request_headers: dict[str, str] | None = None) -> ListLLMEndpointsResponse:
        """Return the models and adapters that the endpoint serves."""
        connection.refuse_request_headers(request_headers)
        return ListLLMEndpointsResponse.model_validate(connection.call("GET", MODELS_PATH))

    @classmethod
    def delete(
        cls, model_endpoint_name: str, request_headers: dict[str, str] | None = None
    ) -> DeleteLLMEndpointResponse:
        """Delete the endpoint that ``create`` gave this name, or else the adapter of this name."""
        connection.refuse_request_headers(request_headers)
        if _delete_created_endpoint(model_endpoint_name):
            return DeleteLLMEndpointResponse(deleted=True)
        if not (connection.CONNECTION.endpoint_id or account.endpoint_id()):
            raise NotFoundError(f"there is no endpoint {model_endpoint_name} that create made")
        deleted = connection.call("DELETE", _model_path(model_endpoint_name))
        return DeleteLLMEndpointResponse.model_validate(deleted)

    @classmethod
    def download(
        cls, model_name: str, download_format: str = "hugging_face"
    ) -> DownloadModelResponse:
        """Return the URLs of a base model's files on the Hugging Face hub; adapters have none."""
        body = {"model_name": model_name, "download_format": download_format}
        response = connection.call("POST", f"{MODELS_PATH}/download", body)
        return DownloadModelResponse.model_validate(response)


def _model_path(name: str) -> str:
    return f"{MODELS_PATH}/{quote(name)}"


def _delete_created_endpoint(name: str) -> bool:
    """Delete the endpoint that ``create`` created under a name; return whether it existed."""
    config = connection.CONNECTION
    if (
        config.api_url is None
        and (config.base_url or account.platform_base_url()) != account.PLATFORM_URL
    ):
        # ``create`` creates no endpoints behind other queues, such as an emulator's.
        return False
    with _open_model_endpoints() as endpoints:
        return endpoints.delete(name)


def _without_cls(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "cls"}


@contextmanager
def _open_model_endpoints() -> Iterator[ModelEndpoints]:
    """Open a client for the account's endpoints, and translate its errors to LLM Engine's."""
    config = connection.CONNECTION
    key, queue_url = config.api_key or account.api_key(), config.base_url or account.PLATFORM_URL
    try:
        with closing(Api(key, config.api_url or API_URL, queue_url)) as api:
            yield ModelEndpoints(api, config.image or "")
    except ApiError as error:
        raise error_for_status(error.status, str(error)) from None
    except NoEndpoint as error:
        raise NotFoundError(str(error)) from None
    except (NoResponse, EndpointUnhealthy) as error:
        raise ServerError(502, str(error)) from None
    except DeployError as error:
        raise BadRequestError(str(error)) from None
