"""LLM Engine's routes for models: which are served, and where their files can be downloaded."""

import asyncio
from pathlib import Path
from typing import Any, Literal

from worker.engine import BaseModelHandle
from worker.errors import InvalidInput
from worker.routes import models
from worker.routes.route import RouteRequest
from worker.validation import StrictModel
from worker.volume import ADAPTERS_DIRECTORY, adapters, translate_os_errors
from worker.volume.ids import VolumeLocation

ENDPOINTS_PATH = "/v1/llm/model-endpoints"
ENDPOINT_PATH = "/v1/llm/model-endpoints/{name:path}"
DOWNLOAD_PATH = "/v1/llm/model-endpoints/download"
FILE_PATH = "/v1/llm/model-files/{name}/{file}"
# Query key of a download; its value is the server's address, with which all links start.
BASE_URL_KEY = "base_url"

# Quantizations that the client knows. vLLM's longer names for its implementations start with them.
QUANTIZATIONS = ("bitsandbytes", "awq")


class DownloadRequest(StrictModel):
    """A request for links to the files of a model."""

    model_name: str
    download_format: Literal["hugging_face"] = "hugging_face"


async def list_endpoints(request: RouteRequest) -> dict[str, Any]:
    """List the models that callers can name."""
    return {
        "model_endpoints": [
            _endpoint_object(base, card) for base, card in await models.list_cards(request)
        ]
    }


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a model or an adapter."""
    return _endpoint_object(*await models.find_card(request, request.path_params["name"]))


async def refuse_to_create_or_change(request: RouteRequest) -> Any:
    """Refuse to create or change an endpoint, which a worker can't do."""
    raise InvalidInput(
        "A worker can't make or change endpoints: they are made on the platform, by the client's "
        "deploy command (python -m llm_worker_client deploy) or in its console, and MODEL_NAME "
        "says which model they serve."
    )


async def delete_adapter(request: RouteRequest) -> dict[str, Any]:
    """Delete an adapter from the network volume."""
    await models.delete_adapter(request, request.path_params["name"])
    return {"deleted": True}


async def make_download_links(request: RouteRequest) -> dict[str, Any]:
    """Return links to the files of a model or an adapter."""
    body = DownloadRequest.from_body(request.body)
    base, card = await models.find_card(request, body.model_name)
    if card["parent"] is None:
        return {"urls": await asyncio.to_thread(_hub_file_urls, base)}
    await models.check_on_volume(base, card, "be downloaded")
    return {"urls": await asyncio.to_thread(_signed_adapter_links, request, body.model_name)}


async def refuse_adapter_file_in_job(request: RouteRequest) -> Any:
    """Return a file of an adapter by its path or a signed link: over HTTP only, a job is refused.

    The HTTP server answers this route itself.
    """
    name = request.path_params["name"]
    raise _download_error(name, await asyncio.to_thread(_find_adapter_files, request, name))


def _endpoint_object(base: BaseModelHandle, card: dict[str, Any]) -> dict[str, Any]:
    quantization = base.model.quantization or ""
    return {
        "id": card["id"],
        "name": card["id"],
        "model_name": card["parent"] or card["id"],
        "source": "hugging_face",
        "status": "UPDATE_FAILED" if "problem" in card else "READY",
        "inference_framework": "vllm",
        "inference_framework_tag": None,
        "num_shards": base.model.gpu_count,
        "quantize": next((name for name in QUANTIZATIONS if quantization.startswith(name)), None),
        "spec": None,
        "chat_template_override": None,
    }


def _hub_file_urls(base: BaseModelHandle) -> dict[str, str]:
    """Return the Hugging Face URLs of the files that a model was loaded from, by file name."""
    model = base.model
    if model.commit is None or model.directory is None:
        raise InvalidInput(
            "This model was loaded from a directory: only the endpoint's operator knows where its "
            "files can be downloaded."
        )
    # huggingface_hub reads its settings on import, and the worker sets them during startup.
    from huggingface_hub import hf_hub_url  # noqa: PLC0415 - after the settings

    with translate_os_errors():
        names = sorted(
            str(path.relative_to(model.directory))
            for path in model.directory.rglob("*")
            if path.is_file()
        )
    return {name: hf_hub_url(model.source, name, revision=model.commit) for name in names}


def _signed_adapter_links(request: RouteRequest, name: str) -> dict[str, str]:
    """Return signed links to an adapter's files. They work for an hour, without the API key."""
    files = _find_adapter_files(request, name)
    base_url = request.job.query_params.get(BASE_URL_KEY)
    if base_url is None:
        raise _download_error(name, files)
    links = request.resources.links
    paths = {file: FILE_PATH.format(name=name, file=file) for file in files}
    return {file: links.sign_url(base_url, path) for file, path in paths.items()}


def _find_adapter_files(request: RouteRequest, name: str) -> dict[str, Path]:
    location = VolumeLocation.from_settings(request.settings)
    root = adapters.adapters_directory(request.settings.base_path)
    return adapters.adapter_file_paths(root, name, location)


def _download_error(name: str, files: dict[str, Path]) -> InvalidInput:
    keys = ", ".join(f"{ADAPTERS_DIRECTORY}/{name}/{file}" for file in files)
    return InvalidInput(
        "A job can't hold the files of an adapter: read them by the S3 API of the network volume, "
        f"where their keys are {keys}."
    )
