"""LLM Engine's models as endpoints: what its arguments are here, and which can't be."""

import re
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from logging import getLogger
from typing import Any

from llm_worker_client.deploy.api import Api, Body
from llm_worker_client.deploy.apply import Deployment
from llm_worker_client.deploy.changes import as_requested, next_step
from llm_worker_client.deploy.errors import ExistsError, PlanError, Problem
from llm_worker_client.deploy.plan import ON_GPU, pools_of, read_plan, weights_gb
from llm_worker_client.deploy.settings import LISTING

log = getLogger(__name__)

# The pools of LLM Engine's types of GPUs.
GPU_TYPES = {
    "nvidia-tesla-t4": "AMPERE_16",
    "nvidia-ampere-a10": "AMPERE_24",
    "nvidia-ampere-a100": "AMPERE_80",
    "nvidia-ampere-a100e": "AMPERE_80",
    "nvidia-hopper-h100": "ADA_80_PRO",
}

# Methods of quantization that vLLM has still; LLM Engine's bitsandbytes it hasn't.
QUANTIZATIONS = ("awq", "fp8")
# What takes its place: vLLM makes it of any weights while they are loaded, too.
_NO_BITSANDBYTES = "vLLM has had no bitsandbytes since 0.28: fp8 is made of any weights, too"
# Tells the endpoints that `create` has made, which alone `delete` deletes.
CREATED = "LLM_ENGINE_MODEL"

LEAST = dict.fromkeys(("num_shards", "gpus", "per_worker", "max_model_len"), 1)
LEAST |= {"min_workers": 0, "max_workers": 0}

# Arguments that are settings of the worker.
SETTINGS = {
    "num_shards": "TENSOR_PARALLEL_SIZE",
    "quantize": "QUANTIZATION",
    "max_model_len": "MAX_MODEL_LEN",
}

# The image's tag for LLM Engine's.
LATEST = "stable"

_STORAGE = re.compile(r"(\d+)\s*(Gi|G|GB|Ti|T|TB)", re.IGNORECASE)

# Arguments with which an endpoint can't be had, each with the values that ask for nothing.
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nodes_per_worker": ("a worker is one machine: use more GPUs (num_shards)", (None, 1)),
    "post_inference_hooks": ("a worker calls nobody: a job can name a webhook", (None, [])),
    "source": ("weights come from the Hugging Face hub", (None, "hugging_face")),
    "endpoint_type": ("jobs are streamed as callers ask", (None, "streaming")),
    "request_headers": ("the platform takes no headers", (None, {})),
}
# Arguments that have no effect here but a warning.
WITHOUT_EFFECT = {
    "default_callback_url": "callbacks are per job here: send each job its own webhook",
    "cpus": "the platform gives each GPU its CPUs",
    "memory": "the platform gives each GPU its memory",
    "labels": "endpoints have no labels here",
}


class Models:
    """LLM Engine's ``Model`` over the platform's endpoints; nothing here waits for a worker.

    The arguments of ``create`` and ``update`` are LLM Engine's, by name. Those that have no effect
    here are warned of. ``image`` is the worker's, without a tag.
    """

    def __init__(self, api: Api, image: str) -> None:
        self._api = api
        self._image = image

    def create(self, **arguments: Any) -> str:
        """Create an endpoint and return its id.

        Raises:
            PlanError: an argument can't be carried out; the message names it.
            ExistsError: there is an endpoint of that name.
            DeployError: the platform refuses it, or can't be reached.
        """
        wanted: Body = {"max_workers": 1, "per_worker": 2} | _checked(arguments)
        kind = wanted.get("gpu_type")
        tag = wanted.pop("inference_framework_image_tag", "latest")
        fields = {
            "name": wanted["name"],
            "image": _image(self._image, tag, wanted),
            "gpu_pools": [GPU_TYPES[kind]] if kind else _pools_by_size(wanted),
        }
        request = read_plan(fields)[0].request()
        request["env"][CREATED] = wanted["name"]
        _alter(request, wanted)
        if self._api.find(wanted["name"]) is not None:
            raise ExistsError(f"there is an endpoint named {wanted['name']}")
        return self._carry_out(request, None)

    def update(self, **arguments: Any) -> str:
        """Change what the arguments name of an endpoint, and return its id.

        Raises:
            NoEndpoint: there is no endpoint of that name.
            PlanError: an argument can't be carried out; the message names it.
            DeployError: the platform refuses it, or can't be reached.
        """
        arguments = _checked(arguments)
        there = self._api.get(arguments["name"])
        request = {"type": "QUEUE", **deepcopy(as_requested(there))}
        _alter(request, arguments)
        known = {"name", "type", "image", "env", "gpu", "disk", "workers", "scaling"}
        return self._carry_out({key: request[key] for key in known & request.keys()}, there)

    def delete(self, name: str) -> bool:
        """Delete an endpoint that ``create`` made under a name; return whether there is one.

        Raises:
            ExistsError: there are several of that name.
            DeployError: the platform refuses it, or can't be reached.
        """
        try:
            found = self._api.find(name)
        except Problem as refused:
            if refused.status in {401, 403}:
                # A key of one endpoint, which has made none.
                return False
            raise
        if found is None or (found.get("env") or {}).get(CREATED) != name:
            return False
        self._api.delete(str(found["id"]))
        return True

    def _carry_out(self, request: Body, there: Body | None) -> str:
        step = next_step(request, there, self._api.url())
        return Deployment(self._api, log.info, log.warning, wait_s=0).carry_out(step)


def _checked(arguments: Mapping[str, Any]) -> Body:
    """Return the arguments that are not None, with plain values.

    Raises:
        PlanError: some can't be carried out.
    """
    values = {key: getattr(value, "value", value) for key, value in arguments.items()}
    if mistakes := [*_mistakes(values)]:
        raise PlanError(mistakes)
    values = {key: value for key, value in values.items() if value is not None}
    for name in WITHOUT_EFFECT.keys() & values.keys():
        warnings.warn(f"{name} has no effect: {WITHOUT_EFFECT[name]}", stacklevel=4)
    return values


def _mistakes(arguments: Body) -> Iterator[str]:
    for name, (why, no) in REFUSED.items():
        if arguments.get(name) not in no:
            yield f"{name}: {why}"
    if arguments.get("quantize") == "bitsandbytes":
        yield f"quantize: {_NO_BITSANDBYTES}"
        return
    for name, known in (("gpu_type", GPU_TYPES), ("quantize", QUANTIZATIONS)):
        if arguments.get(name) not in {None, *known}:
            yield f"{name}: {arguments[name]} can't be had here: {', '.join(known)}"
    yield from _numbers(arguments)


def _numbers(arguments: Body) -> Iterator[str]:
    for name, least in LEAST.items():
        value = arguments.get(name)
        if value is not None and (not isinstance(value, int) or value < least):
            yield f"{name}: a whole number of at least {least}"
            return
    if arguments.get("gpus") is not None and arguments["gpus"] < (arguments.get("num_shards") or 1):
        yield "gpus: fewer than num_shards"


def _alter(request: Body, arguments: Body) -> None:
    """Bring a request to what the arguments say."""
    env, workers = request["env"], request["workers"]
    env |= _settings(arguments)
    if tag := arguments.get("inference_framework_image_tag"):
        request["image"] = _image(request["image"], tag, arguments)
    count = arguments.get("gpus", arguments.get("num_shards"))
    request["gpu"] |= {} if count is None else {"count": count}
    if kind := arguments.get("gpu_type"):
        request["gpu"] |= {"pools": [GPU_TYPES[kind]], "excludedTypes": []}
    if storage := arguments.get("storage"):
        request["disk"] = _gigabytes(storage)
    for name, key in (("min_workers", "min"), ("max_workers", "max")):
        workers[key] = arguments.get(name, workers[key])
    if arguments.get("high_priority"):
        workers["min"] = max(1, workers["min"])
    if workers["min"] > workers["max"]:
        raise PlanError(["min_workers: more than max_workers"])
    if per_worker := arguments.get("per_worker"):
        workers.pop("idleTimeout", None)
        request["scaling"] = {"type": "REQUEST_COUNT", "requestCount": per_worker}


def _settings(arguments: Body) -> dict[str, str]:
    """Return the worker's settings for the arguments."""
    env: dict[str, str] = {"OPENAI_SERVED_MODEL_NAME_OVERRIDE": arguments["name"]}
    if model := arguments.get("checkpoint_path") or arguments.get("model"):
        if "/" not in model or LISTING.wrong("MODEL_NAME", model):
            raise PlanError([f"checkpoint_path: which repository or directory is {model}?"])
        env["MODEL_NAME"] = model
    env |= {name: str(arguments[key]) for key, name in SETTINGS.items() if key in arguments}
    if "per_worker" in arguments:
        # As many again wait in the worker, while the platform starts another.
        env["MAX_CONCURRENCY"] = str(2 * arguments["per_worker"])
    return env


def _image(image: str, tag: str, arguments: Body) -> str:
    """Return the worker's image for an image tag of LLM Engine's."""
    repository, colon, last = image.rpartition(":")
    bare = repository if colon and "/" not in last else image
    if arguments.get("inference_framework", "vllm") != "vllm":
        warnings.warn(f"inference_framework: vLLM serves it, the image is {LATEST}", stacklevel=4)
        tag = LATEST
    return f"{bare}:{LATEST if tag == 'latest' else tag}"


def _pools_by_size(arguments: Body) -> list[str]:
    """Choose the smallest GPUs that hold a model by the size in its name, such as 7b.

    Raises:
        PlanError: its name has none, or it needs more.
    """
    names = f"{arguments['model']} {arguments.get('checkpoint_path', '')}"
    if (weights := weights_gb(names, arguments.get("quantize", ""))) is None:
        raise PlanError(
            [f"gpu_type: the model's name does not say its size: one of {', '.join(GPU_TYPES)}"]
        )
    needed = weights * ON_GPU / (arguments.get("gpus") or arguments.get("num_shards") or 1)
    if not (pools := pools_of(needed)):
        raise PlanError([f"num_shards: {needed:.0f} GB on each GPU; use more of them"])
    return pools


def _gigabytes(storage: str) -> int:
    if not (found := _STORAGE.fullmatch(storage.strip())):
        raise PlanError(["storage: write GB as 40Gi"])
    return int(found[1]) * (1000 if found[2].upper().startswith("T") else 1)
