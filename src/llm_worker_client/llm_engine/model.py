"""LLM Engine's class ``Model``, for an endpoint's models and an account's endpoints.

Its arguments become the worker's settings and fields of the platform's request. Nothing here waits
for a worker.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from logging import getLogger
from typing import Any
from urllib.parse import quote

from llm_worker_client import account
from llm_worker_client.deploy.api import API_URL, Api, Json
from llm_worker_client.deploy.apply import (
    EndpointDeployer,
    endpoint_to_request_body,
    plan_deploy_step,
)
from llm_worker_client.deploy.errors import (
    ApiError,
    DeployError,
    EndpointUnhealthy,
    NoEndpoint,
    NoResponse,
    PlanError,
)
from llm_worker_client.deploy.plan import (
    KV_CACHE_FACTOR,
    estimate_weights_gb,
    smallest_gpu_pools,
    validate_plan,
)
from llm_worker_client.deploy.settings import LISTING
from llm_worker_client.llm_engine import connection
from llm_worker_client.llm_engine.data_types import (
    CreateLLMEndpointResponse,
    DeleteLLMEndpointResponse,
    DownloadModelResponse,
    GetLLMEndpointResponse,
    ListLLMEndpointsResponse,
    LLMInferenceFramework,
    LLMSource,
    ModelEndpointType,
    PostInferenceHooks,
    Quantization,
    UpdateLLMEndpointResponse,
)
from llm_worker_client.llm_engine.errors import (
    BadRequestError,
    NotFoundError,
    ServerError,
    error_for_status,
)
from llm_worker_client.terminal import make_printable

MODELS_PATH = "/v1/llm/model-endpoints"
Hooks = list[PostInferenceHooks]
log = getLogger(__name__)

# The platform's GPU pool for each of LLM Engine's GPU types.
GPU_TYPES = {
    "nvidia-tesla-t4": "AMPERE_16",
    "nvidia-ampere-a10": "AMPERE_24",
    "nvidia-ampere-a100": "AMPERE_80",
    "nvidia-ampere-a100e": "AMPERE_80",
    "nvidia-hopper-h100": "ADA_80_PRO",
}

# Quantization methods that vLLM still supports. It no longer supports LLM Engine's bitsandbytes.
QUANTIZATIONS = ("awq", "fp8")
# The message recommends fp8, to which vLLM can quantize any weights while it loads them.
_NO_BITSANDBYTES = "vLLM has not supported bitsandbytes since 0.28; fp8 works with any weights"
# Environment variable of the endpoints that `create` created; `delete` deletes no others.
NAME_VARIABLE = "LLM_ENGINE_MODEL"

ARGUMENT_MINIMUMS = dict.fromkeys(("num_shards", "gpus", "per_worker", "max_model_len"), 1)
ARGUMENT_MINIMUMS |= {"min_workers": 0, "max_workers": 0}

# The worker's settings that take the value of one of LLM Engine's arguments, by argument.
SETTING_BY_ARGUMENT = {
    "num_shards": "TENSOR_PARALLEL_SIZE",
    "quantize": "QUANTIZATION",
    "max_model_len": "MAX_MODEL_LEN",
}

# The worker's image tag for LLM Engine's tag `latest`.
DEFAULT_TAG = "stable"

_STORAGE_SIZE = re.compile(r"(\d+)\s*(Gi|G|GB|Ti|T|TB)", re.IGNORECASE)

# Unsupported arguments: the reason, and the values that are accepted because they have no effect.
UNSUPPORTED_ARGUMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nodes_per_worker": ("a worker is one machine: use more GPUs (num_shards)", (None, 1)),
    "post_inference_hooks": (
        "workers don't call webhooks: a job can name one for the platform",
        (None, []),
    ),
    "source": ("weights come from the Hugging Face hub", (None, "hugging_face")),
    "endpoint_type": ("each request selects whether it is streamed", (None, "streaming")),
    "request_headers": ("jobs have no headers", (None, {})),
}
# Arguments that only cause a warning.
IGNORED_ARGUMENTS = {
    "default_callback_url": "callbacks are per job here: send each job its own webhook",
    "cpus": "the platform gives each GPU its CPUs",
    "memory": "the platform gives each GPU its memory",
    "labels": "endpoints have no labels here",
}


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
        arguments = {name: value for name, value in locals().items() if name != "cls"}
        if (image := connection.CONNECTION.image) is None:
            raise BadRequestError("image: call configure(image=…) with the worker's image")
        with _open_api() as api:
            values: Json = {"max_workers": 1, "per_worker": 2} | _validate_arguments(arguments)
            tag = values.pop("inference_framework_image_tag", "latest")
            if values.get("inference_framework", "vllm") != "vllm":
                message = f"inference_framework: this worker uses vLLM; the image is {DEFAULT_TAG}"
                warnings.warn(message, stacklevel=2)
                tag = DEFAULT_TAG
            has_gpu_type = "gpu_type" in values
            pools = [GPU_TYPES[values["gpu_type"]]] if has_gpu_type else _choose_gpu_pools(values)
            fields = {"name": name, "image": _image_with_tag(image, tag), "gpu_pools": pools}
            request = validate_plan(fields)[0].to_request_body()
            request["env"][NAME_VARIABLE] = name
            _set_request_fields(request, values)
            if api.find_endpoint_by_name(name) is not None:
                raise DeployError(f"there is an endpoint named {name}")
            endpoint_id = _deploy(api, request, None)
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
        arguments = {name: value for name, value in locals().items() if name != "cls"}
        with _open_api() as api:
            values = _validate_arguments(arguments)
            existing = api.endpoint_by_name_or_id(name)
            request = {"type": "QUEUE", **deepcopy(endpoint_to_request_body(existing))}
            _set_request_fields(request, values)
            changed_keys = {"name", "type", "image", "env", "gpu", "disk", "workers", "scaling"}
            changed = {key: request[key] for key in changed_keys & request.keys()}
            endpoint_id = _deploy(api, changed, existing)
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
        config = connection.CONNECTION
        queue_url = config.base_url or account.platform_base_url()
        # ``create`` creates no endpoints behind other queues, such as an emulator's.
        if config.api_url is not None or queue_url == account.PLATFORM_URL:
            with _open_api() as api:
                if _delete_created_endpoint(api, model_endpoint_name):
                    return DeleteLLMEndpointResponse(deleted=True)
        if not (config.endpoint_id or account.endpoint_id()):
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


@contextmanager
def _open_api() -> Iterator[Api]:
    """Open a client for the account's endpoints, and translate its errors to LLM Engine's."""
    config = connection.CONNECTION
    key, queue_url = config.api_key or account.api_key(), config.base_url or account.PLATFORM_URL
    try:
        with closing(Api(key, config.api_url or API_URL, queue_url)) as api:
            yield api
    except ApiError as error:
        raise error_for_status(error.status, str(error)) from None
    except NoEndpoint as error:
        raise NotFoundError(str(error)) from None
    except (NoResponse, EndpointUnhealthy) as error:
        raise ServerError(502, str(error)) from None
    except DeployError as error:
        raise BadRequestError(str(error)) from None


def _deploy(api: Api, request: Json, existing: Json | None) -> str:
    step = plan_deploy_step(request, existing, api.endpoints_url())
    return EndpointDeployer(
        api,
        report=lambda text: log.info(make_printable(text)),
        warn=lambda text: log.warning(make_printable(text)),
        wait_s=0,
    ).deploy(step)


def _delete_created_endpoint(api: Api, name: str) -> bool:
    """Delete the endpoint that ``create`` created under a name; return whether it existed."""
    try:
        endpoint = api.find_endpoint_by_name(name)
    except ApiError as error:
        if error.status in {401, 403}:
            # A key that may not list the account's endpoints can't have created one.
            return False
        raise
    if endpoint is None or (endpoint.get("env") or {}).get(NAME_VARIABLE) != name:
        return False
    api.delete_endpoint(str(endpoint["id"]))
    return True


def _validate_arguments(arguments: Json) -> Json:
    """Return the arguments that are not None; warn of those that have no effect."""
    values = {key: getattr(value, "value", value) for key, value in arguments.items()}
    if mistakes := [*_find_mistakes(values)]:
        raise PlanError(mistakes)
    values = {key: value for key, value in values.items() if value is not None}
    for name in IGNORED_ARGUMENTS.keys() & values.keys():
        warnings.warn(f"{name} has no effect: {IGNORED_ARGUMENTS[name]}", stacklevel=3)
    return values


def _find_mistakes(arguments: Json) -> Iterator[str]:
    for name, (reason, neutral) in UNSUPPORTED_ARGUMENTS.items():
        if arguments.get(name) not in neutral:
            yield f"{name}: {reason}"
    for name, supported in (("gpu_type", GPU_TYPES), ("quantize", QUANTIZATIONS)):
        if arguments.get(name) == "bitsandbytes":
            yield f"{name}: {_NO_BITSANDBYTES}"
        elif arguments.get(name) not in {None, *supported}:
            yield f"{name}: {arguments[name]} is not supported; use one of {', '.join(supported)}"
    for name, minimum in ARGUMENT_MINIMUMS.items():
        value = arguments.get(name)
        if value is not None and (not isinstance(value, int) or value < minimum):
            yield f"{name}: a whole number of at least {minimum}"
            return  # what follows compares numbers
    if arguments.get("gpus") is not None and arguments["gpus"] < (arguments.get("num_shards") or 1):
        yield "gpus: fewer than num_shards"


def _set_request_fields(request: Json, arguments: Json) -> None:
    """Apply the arguments to the body of a request; raise ``PlanError`` for invalid ones."""
    env, workers = request["env"], request["workers"]
    env["OPENAI_SERVED_MODEL_NAME_OVERRIDE"] = arguments["name"]
    if model := arguments.get("checkpoint_path") or arguments.get("model"):
        if "/" not in model or LISTING.value_error("MODEL_NAME", model):
            raise PlanError([f"checkpoint_path: which repository or directory is {model}?"])
        env["MODEL_NAME"] = model
    env |= {
        name: str(arguments[key]) for key, name in SETTING_BY_ARGUMENT.items() if key in arguments
    }
    if tag := arguments.get("inference_framework_image_tag"):
        request["image"] = _image_with_tag(request["image"], tag)

    count = arguments.get("gpus", arguments.get("num_shards"))
    request["gpu"] |= {} if count is None else {"count": count}
    if gpu_type := arguments.get("gpu_type"):
        request["gpu"] |= {"pools": [GPU_TYPES[gpu_type]], "excludedTypes": []}
    if storage := arguments.get("storage"):
        if not (match := _STORAGE_SIZE.fullmatch(storage.strip())):
            raise PlanError(["storage: write GB as 40Gi"])
        request["disk"] = int(match[1]) * (1000 if match[2].upper().startswith("T") else 1)

    for name, key in (("min_workers", "min"), ("max_workers", "max")):
        workers[key] = arguments.get(name, workers[key])
    if arguments.get("high_priority"):
        workers["min"] = max(1, workers["min"])
    if workers["min"] > workers["max"]:
        raise PlanError(["min_workers: more than max_workers"])
    if per_worker := arguments.get("per_worker"):
        # Twice the number: jobs can wait at this worker while the platform starts another one.
        env["MAX_CONCURRENCY"] = str(2 * per_worker)
        workers.pop("idleTimeout", None)
        request["scaling"] = {"type": "REQUEST_COUNT", "requestCount": per_worker}


def _image_with_tag(image: str, tag: str) -> str:
    """Return the worker's image with the requested tag, or with the default tag for ``latest``."""
    repository, colon, last = image.rpartition(":")
    untagged = repository if colon and "/" not in last else image
    return f"{untagged}:{DEFAULT_TAG if tag == 'latest' else tag}"


def _choose_gpu_pools(arguments: Json) -> list[str]:
    """Return the pools of the smallest GPUs that fit a model, by the size in its name (7b)."""
    names = f"{arguments['model']} {arguments.get('checkpoint_path', '')}"
    if (weights := estimate_weights_gb(names, arguments.get("quantize", ""))) is None:
        message = f"the model's name does not say its size: one of {', '.join(GPU_TYPES)}"
        raise PlanError([f"gpu_type: {message}"])
    needed = weights * KV_CACHE_FACTOR / (arguments.get("gpus") or arguments.get("num_shards") or 1)
    if not (pools := smallest_gpu_pools(needed)):
        raise PlanError([f"num_shards: {needed:.0f} GB on each GPU; use more of them"])
    return pools
