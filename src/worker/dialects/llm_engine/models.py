"""Models in LLM Engine's words: what is served, and where its files are to be had.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from worker.engine import Base
from worker.errors import InvalidInput, RefusedByEngine
from worker.routes.models import cards, find_card
from worker.routes.route import Asked
from worker.validation import Strict
from worker.volume import ADAPTERS, adapters, failures

ENDPOINTS = "/v1/llm/model-endpoints"
ENDPOINT = "/v1/llm/model-endpoints/{name:path}"
DOWNLOAD = "/v1/llm/model-endpoints/download"
FILE = "/v1/llm/model-files/{name}/{file}"
# In the query string of a download: the address of the server that links lead to.
BASE_URL = "base_url"

# The client knows these two only, and vLLM has several implementations of one.
QUANTIZATIONS = ("bitsandbytes", "awq")


class Download(Strict):
    """A request for the files of a model."""

    model_name: str
    download_format: Literal["hugging_face"] = "hugging_face"


async def list_endpoints(asked: Asked) -> dict[str, Any]:
    """List the models that callers can name (LLM Engine's).

    Raises:
        EngineDead: no engine is alive.
    """
    return {"model_endpoints": [_endpoint(base, card) for base, card in await cards(asked)]}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a model or an adapter (LLM Engine's).

    Raises:
        UnknownRoute: there is none of this name.
    """
    return _endpoint(*await find_card(asked, asked.parameters["name"]))


async def refuse_to_create(asked: Asked) -> Any:
    """Refuse: a worker makes and changes no endpoints (LLM Engine's).

    Raises:
        InvalidInput: always.
    """
    raise InvalidInput(
        "A worker can't make or change endpoints: they are made on the platform, by the client's "
        "deploy command (python -m llm_worker_client deploy) or in its console, and MODEL_NAME "
        "says which model they serve."
    )


async def delete(asked: Asked) -> dict[str, Any]:
    """Delete an adapter from the network volume (LLM Engine's).

    Raises:
        UnknownRoute: there is no such model or adapter.
        InvalidInput: it is the endpoint's own, or was not made by a fine-tune and callers may not.
        VolumeError: the volume can't be written to.
    """
    name = asked.parameters["name"]
    base, card = await find_card(asked, name)
    await _check_adapter(base, card, "be deleted")
    made = await asyncio.to_thread(adapters.maker, _root(asked), name)
    if made is None and not asked.settings.allow_unload_lora_adapter:
        raise InvalidInput(
            "Callers can delete only adapters that fine-tunes have made here: for others, the "
            "worker's operator has to allow it with ALLOW_UNLOAD_LORA_ADAPTER=1."
        )
    await asyncio.to_thread(adapters.remove, _root(asked), name)
    try:
        await base.unload(name)
    except RefusedByEngine as error:
        if error.status != HTTPStatus.NOT_FOUND:  # it was not loaded
            raise
    return {"deleted": True}


async def download(asked: Asked) -> dict[str, Any]:
    """Tell where the files of a model or an adapter can be downloaded (LLM Engine's).

    Raises:
        UnknownRoute: there is no such model or adapter.
        InvalidInput: its files can't be downloaded.
    """
    request = Download.of_body(asked.body)
    base, card = await find_card(asked, request.model_name)
    if card["parent"] is None:
        return {"urls": await asyncio.to_thread(_hub_urls, base)}
    await _check_adapter(base, card, "be downloaded")
    return {"urls": await asyncio.to_thread(_signed_links, asked, request.model_name)}


async def file(asked: Asked) -> Any:
    """Return a file of an adapter: over HTTP only, also by a link of ``download``.

    Raises:
        NoSuchObject: there is no such adapter.
        InvalidInput: a job has asked.
    """
    name = asked.parameters["name"]
    raise _only_over_http(name, await asyncio.to_thread(adapters.adapter_files, _root(asked), name))


def _endpoint(base: Base, card: dict[str, Any]) -> dict[str, Any]:
    quantization = base.model.quantization or ""
    return {
        "id": card["id"],
        "name": card["id"],
        "model_name": card["parent"] or card["id"],
        "source": "hugging_face",
        "status": "READY",
        "inference_framework": "vllm",
        "inference_framework_tag": None,
        "num_shards": base.model.gpus,
        "quantize": next((name for name in QUANTIZATIONS if quantization.startswith(name)), None),
        "spec": None,
        "chat_template_override": None,
    }


async def _check_adapter(base: Base, card: dict[str, Any], wanted: str) -> None:
    """Check that a card is that of an adapter on the volume.

    Raises:
        InvalidInput: it is not; ``wanted`` says what can't be done with it.
    """
    name = card["id"]
    if card["parent"] is None:
        raise InvalidInput(f"{name!r} is a base model: only adapters can {wanted}.")
    if name not in await base.adapters_on_volume():
        raise InvalidInput(f"{name!r} belongs to the endpoint (LORA_MODULES): it can't {wanted}.")


def _root(asked: Asked) -> Path:
    return adapters.directory(asked.settings.base_path)


def _hub_urls(base: Base) -> dict[str, str]:
    """Return the hub's addresses of the files that a model was loaded from."""
    model = base.model
    if model.commit is None or model.place is None:
        raise InvalidInput(
            "This model was loaded from a directory: where else its files are to be had, only the "
            "endpoint's operator knows."
        )
    # It reads the hub's settings when it is imported, which are written while the worker starts.
    from huggingface_hub import hf_hub_url  # noqa: PLC0415 - see above

    with failures():
        names = sorted(
            str(place.relative_to(model.place))
            for place in model.place.rglob("*")
            if place.is_file()
        )
    return {name: hf_hub_url(model.source, name, revision=model.commit) for name in names}


def _signed_links(asked: Asked, name: str) -> dict[str, str]:
    """Return links to an adapter's files, which work for an hour without the key."""
    files = adapters.adapter_files(_root(asked), name)
    base_url = asked.job.query.get(BASE_URL)
    if base_url is None:
        raise _only_over_http(name, files)
    links = asked.resources.links
    paths = {file: FILE.format(name=name, file=file) for file in files}
    return {file: links.signed(base_url, path) for file, path in paths.items()}


def _only_over_http(name: str, files: dict[str, Path]) -> InvalidInput:
    keys = ", ".join(f"{ADAPTERS}/{name}/{file}" for file in files)
    return InvalidInput(
        "A job can't hold the files of an adapter: read them by the S3 API of the network volume, "
        f"where their keys are {keys}."
    )
