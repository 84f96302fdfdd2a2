"""Creates, changes and deletes endpoints with the arguments of LLM Engine's ``Model``."""

import re
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from logging import getLogger
from typing import Any

from llm_worker_client.deploy.api import Api, Json
from llm_worker_client.deploy.apply import EndpointDeployer
from llm_worker_client.deploy.changes import endpoint_to_request_body, plan_deploy_step
from llm_worker_client.deploy.errors import ApiError, DuplicateName, PlanError
from llm_worker_client.deploy.plan import (
    KV_CACHE_FACTOR,
    estimate_weights_gb,
    smallest_gpu_pools,
    validate_plan,
)
from llm_worker_client.deploy.settings import LISTING
from llm_worker_client.terminal import make_printable

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


class ModelEndpoints:
    """Creates, changes and deletes endpoints as LLM Engine's ``Model`` does.

    ``create`` and ``update`` take LLM Engine's arguments as keywords, and warn of arguments that
    have no effect. No method waits for a worker. ``image`` is the worker's image without a tag.
    """

    def __init__(self, api: Api, image: str) -> None:
        self._api = api
        self._image = image

    def create(self, **arguments: Any) -> str:
        """Create an endpoint and return its id.

        Raises:
            PlanError: If an argument is unsupported or invalid. The message names it.
            DuplicateName: If an endpoint with this name exists.
            DeployError: If the platform refuses the request or can't be reached.
        """
        values: Json = {"max_workers": 1, "per_worker": 2} | _validate_arguments(arguments)
        gpu_type = values.get("gpu_type")
        tag = values.pop("inference_framework_image_tag", "latest")
        fields = {
            "name": values["name"],
            "image": _image_with_tag(self._image, tag, values),
            "gpu_pools": [GPU_TYPES[gpu_type]] if gpu_type else _choose_gpu_pools(values),
        }
        request = validate_plan(fields)[0].to_request_body()
        request["env"][NAME_VARIABLE] = values["name"]
        _set_request_fields(request, values)
        if self._api.find_endpoint_by_name(values["name"]) is not None:
            raise DuplicateName(f"there is an endpoint named {values['name']}")
        return self._deploy(request, None)

    def update(self, **arguments: Any) -> str:
        """Change the passed options of an endpoint and return its id.

        Raises:
            NoEndpoint: If no endpoint has this name or id.
            PlanError: If an argument is unsupported or invalid. The message names it.
            DeployError: If the platform refuses the request or can't be reached.
        """
        arguments = _validate_arguments(arguments)
        existing = self._api.endpoint_by_name_or_id(arguments["name"])
        request = {"type": "QUEUE", **deepcopy(endpoint_to_request_body(existing))}
        _set_request_fields(request, arguments)
        changed_keys = {"name", "type", "image", "env", "gpu", "disk", "workers", "scaling"}
        return self._deploy({key: request[key] for key in changed_keys & request.keys()}, existing)

    def delete(self, name: str) -> bool:
        """Delete an endpoint that ``create`` created under a name; return whether it existed.

        Raises:
            DuplicateName: If several endpoints have this name.
            DeployError: If the platform refuses the request or can't be reached.
        """
        try:
            endpoint = self._api.find_endpoint_by_name(name)
        except ApiError as error:
            if error.status in {401, 403}:
                # A key that may not list the account's endpoints can't have created one.
                return False
            raise
        if endpoint is None or (endpoint.get("env") or {}).get(NAME_VARIABLE) != name:
            return False
        self._api.delete_endpoint(str(endpoint["id"]))
        return True

    def _deploy(self, request: Json, existing: Json | None) -> str:
        step = plan_deploy_step(request, existing, self._api.endpoints_url())
        return EndpointDeployer(self._api, _report, _warn, wait_s=0).deploy(step)


def _report(text: str) -> None:
    log.info(make_printable(text))


def _warn(text: str) -> None:
    log.warning(make_printable(text))


def _validate_arguments(arguments: Mapping[str, Any]) -> Json:
    """Return the arguments that are not None; warn of those that have no effect.

    Raises:
        PlanError: If arguments are unsupported or invalid.
    """
    values = {key: getattr(value, "value", value) for key, value in arguments.items()}
    if mistakes := [*_find_argument_mistakes(values)]:
        raise PlanError(mistakes)
    values = {key: value for key, value in values.items() if value is not None}
    for name in IGNORED_ARGUMENTS.keys() & values.keys():
        warnings.warn(f"{name} has no effect: {IGNORED_ARGUMENTS[name]}", stacklevel=4)
    return values


def _find_argument_mistakes(arguments: Json) -> Iterator[str]:
    for name, (reason, neutral) in UNSUPPORTED_ARGUMENTS.items():
        if arguments.get(name) not in neutral:
            yield f"{name}: {reason}"
    if arguments.get("quantize") == "bitsandbytes":
        yield f"quantize: {_NO_BITSANDBYTES}"
        return
    for name, supported in (("gpu_type", GPU_TYPES), ("quantize", QUANTIZATIONS)):
        if arguments.get(name) not in {None, *supported}:
            yield f"{name}: {arguments[name]} is not supported; use one of {', '.join(supported)}"
    yield from _find_number_mistakes(arguments)


def _find_number_mistakes(arguments: Json) -> Iterator[str]:
    for name, minimum in ARGUMENT_MINIMUMS.items():
        value = arguments.get(name)
        if value is not None and (not isinstance(value, int) or value < minimum):
            yield f"{name}: a whole number of at least {minimum}"
            return
    if arguments.get("gpus") is not None and arguments["gpus"] < (arguments.get("num_shards") or 1):
        yield "gpus: fewer than num_shards"


def _set_request_fields(request: Json, arguments: Json) -> None:
    """Apply the arguments to the body of a request; raise ``PlanError`` for invalid ones."""
    env, workers = request["env"], request["workers"]
    env |= _arguments_to_settings(arguments)
    if tag := arguments.get("inference_framework_image_tag"):
        request["image"] = _image_with_tag(request["image"], tag, arguments)
    count = arguments.get("gpus", arguments.get("num_shards"))
    request["gpu"] |= {} if count is None else {"count": count}
    if gpu_type := arguments.get("gpu_type"):
        request["gpu"] |= {"pools": [GPU_TYPES[gpu_type]], "excludedTypes": []}
    if storage := arguments.get("storage"):
        request["disk"] = _parse_gigabytes(storage)
    for name, key in (("min_workers", "min"), ("max_workers", "max")):
        workers[key] = arguments.get(name, workers[key])
    if arguments.get("high_priority"):
        workers["min"] = max(1, workers["min"])
    if workers["min"] > workers["max"]:
        raise PlanError(["min_workers: more than max_workers"])
    if per_worker := arguments.get("per_worker"):
        workers.pop("idleTimeout", None)
        request["scaling"] = {"type": "REQUEST_COUNT", "requestCount": per_worker}


def _arguments_to_settings(arguments: Json) -> dict[str, str]:
    """Return the worker's settings for ``arguments``; raise ``PlanError`` for a bad model name."""
    env: dict[str, str] = {"OPENAI_SERVED_MODEL_NAME_OVERRIDE": arguments["name"]}
    if model := arguments.get("checkpoint_path") or arguments.get("model"):
        if "/" not in model or LISTING.value_error("MODEL_NAME", model):
            raise PlanError([f"checkpoint_path: which repository or directory is {model}?"])
        env["MODEL_NAME"] = model
    env |= {
        name: str(arguments[key]) for key, name in SETTING_BY_ARGUMENT.items() if key in arguments
    }
    if "per_worker" in arguments:
        # Twice the number: jobs can wait at this worker while the platform starts another one.
        env["MAX_CONCURRENCY"] = str(2 * arguments["per_worker"])
    return env


def _image_with_tag(image: str, tag: str, arguments: Json) -> str:
    """Return the worker's image with the requested tag, or with the default tag for ``latest``.

    An inference framework other than vLLM causes a warning and gets the default tag, too.
    """
    repository, colon, last = image.rpartition(":")
    untagged = repository if colon and "/" not in last else image
    if arguments.get("inference_framework", "vllm") != "vllm":
        message = f"inference_framework: this worker uses vLLM; the image is {DEFAULT_TAG}"
        warnings.warn(message, stacklevel=4)
        tag = DEFAULT_TAG
    return f"{untagged}:{DEFAULT_TAG if tag == 'latest' else tag}"


def _choose_gpu_pools(arguments: Json) -> list[str]:
    """Return the pools of the smallest GPUs that fit a model, by the size in its name (7b).

    Raises:
        PlanError: If the name has no size, or no GPU is large enough.
    """
    names = f"{arguments['model']} {arguments.get('checkpoint_path', '')}"
    if (weights := estimate_weights_gb(names, arguments.get("quantize", ""))) is None:
        message = f"the model's name does not say its size: one of {', '.join(GPU_TYPES)}"
        raise PlanError([f"gpu_type: {message}"])
    needed = weights * KV_CACHE_FACTOR / (arguments.get("gpus") or arguments.get("num_shards") or 1)
    if not (pools := smallest_gpu_pools(needed)):
        raise PlanError([f"num_shards: {needed:.0f} GB on each GPU; use more of them"])
    return pools


def _parse_gigabytes(storage: str) -> int:
    if not (match := _STORAGE_SIZE.fullmatch(storage.strip())):
        raise PlanError(["storage: write GB as 40Gi"])
    return int(match[1]) * (1000 if match[2].upper().startswith("T") else 1)
