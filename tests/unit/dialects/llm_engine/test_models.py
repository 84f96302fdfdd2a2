"""LLM Engine's routes of models: lists, downloads, and the deletion of adapters."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine, static_app

from worker.volume.adapters import CONFIG, ORIGIN_FILE, WEIGHTS

ENDPOINTS = "/v1/llm/model-endpoints"
DOWNLOAD = f"{ENDPOINTS}/download"
ALLOWED = {"ALLOW_UNLOAD_LORA_ADAPTER": "1"}


@pytest.fixture
def adapter_directory(tmp_path: Path) -> Path:
    """The directory of the adapter "tuned"."""
    folder = tmp_path / "adapters" / "tuned"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(b"weights")
    return folder


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path, adapter_directory: Path) -> Caller:
    parents = {"org/demo": None, "given": "org/demo"}
    cards = [{"id": name, "parent": parent, "root": name} for name, parent in parents.items()]
    engine.app = static_app(json.dumps({"object": "list", "data": cards}))
    engine.adapters = [adapter_directory.name]
    return Caller(engine, tmp_path, BASE_PATH=str(tmp_path))


def make_caller(caller: Caller, environ: dict[str, str]) -> Caller:
    return Caller(caller.engine, caller.root, BASE_PATH=str(caller.root), **environ)


async def test_models_and_adapters_are_listed_with_their_base_model(caller: Caller) -> None:
    caller.engine.model = replace(caller.engine.model, gpu_count=4, quantization="awq_marlin")
    endpoints = (await caller.get(ENDPOINTS))["model_endpoints"]
    names = [(endpoint["name"], endpoint["model_name"]) for endpoint in endpoints]
    assert names == [("org/demo", "org/demo"), ("given", "org/demo"), ("tuned", "org/demo")]
    for endpoint in endpoints:
        assert (endpoint["quantize"], endpoint["num_shards"]) == ("awq", 4)
        assert (endpoint["source"], endpoint["status"]) == ("hugging_face", "READY")
    assert await caller.get(f"{ENDPOINTS}/org/demo") == endpoints[0]
    caller.engine.broken_adapters = {"broken": "rank 64"}
    *others, broken = (await caller.get(ENDPOINTS))["model_endpoints"]
    assert others == endpoints
    assert broken == {**endpoints[2], "id": "broken", "name": "broken", "status": "UPDATE_FAILED"}
    # LLM Engine's client knows only some quantizations.
    caller.engine.model = replace(caller.engine.model, quantization="fp8")
    assert (await caller.get(f"{ENDPOINTS}/org/demo"))["quantize"] is None


# A model may have the name of a route, such as "download".
@pytest.mark.parametrize(
    ("method", "name"), [("GET", "a/b"), ("DELETE", "a/b"), ("DELETE", "download")]
)
async def test_an_unknown_model_is_404(caller: Caller, method: str, name: str) -> None:
    error = await make_caller(caller, ALLOWED).request_error(method, f"{ENDPOINTS}/{name}")
    assert (error["code"], f"'{name}'" in error["message"]) == (404, True)


# The routes of LLM Engine and OpenAI.
DELETED = {
    ENDPOINTS: {"deleted": True},
    "/v1/models": {"id": "tuned", "object": "model", "deleted": True},
}


@pytest.mark.parametrize("route", DELETED)
@pytest.mark.parametrize("environ", [ALLOWED, {}], ids=["allowed", "from a fine-tune"])
async def test_an_adapter_is_deleted_and_unloaded(
    caller: Caller, adapter_directory: Path, environ: dict[str, str], route: str
) -> None:
    if not environ:
        (adapter_directory / ORIGIN_FILE).write_text('{"id": "ftjob-a"}')
    delete = {"route": f"{route}/tuned", "method": "DELETE"}
    assert await make_caller(caller, environ).run_job(**delete) == DELETED[route]
    assert (list(adapter_directory.parent.iterdir()), caller.engine.adapters) == ([], [])


@pytest.mark.parametrize(
    ("name", "environ", "message"),
    [
        ("org/demo", ALLOWED, "is a base model"),
        ("given", ALLOWED, "(LORA_MODULES)"),
        ("tuned", {}, "ALLOW_UNLOAD_LORA_ADAPTER=1"),
    ],
)
async def test_base_models_and_adapters_of_the_operator_cannot_be_deleted(
    caller: Caller, adapter_directory: Path, name: str, environ: dict[str, str], message: str
) -> None:
    for route in DELETED:
        error = await make_caller(caller, environ).request_error("DELETE", f"{route}/{name}")
        assert (error["code"], message in error["message"]) == (400, True)
    assert (adapter_directory / WEIGHTS).is_file()


async def test_a_model_from_the_hub_is_downloaded_from_the_hub(
    caller: Caller, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot"
    (snapshot / "sub").mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "sub" / "a b.txt").write_text("")
    model = replace(caller.engine.model, source="org/demo", directory=snapshot, commit="c" * 40)
    caller.engine.model = model
    urls = (await caller.post(DOWNLOAD, model_name="org/demo", download_format=None))["urls"]
    assert urls.keys() == {"config.json", "sub/a b.txt"}
    assert urls["config.json"].endswith(f"/org/demo/resolve/{'c' * 40}/config.json")
    assert urls["sub/a b.txt"].endswith("/sub/a%20b.txt")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model_name": "org/demo"}, "was loaded from a directory"),
        ({"model_name": "given"}, "(LORA_MODULES)"),
        # The files don't fit into a job.
        ({"model_name": "tuned"}, f"adapters/tuned/{CONFIG}, adapters/tuned/{WEIGHTS}"),
        ({"model_name": "tuned", "download_format": "gguf"}, "download_format"),
        ({}, "model_name"),
    ],
)
async def test_other_downloads_are_refused(
    caller: Caller, body: dict[str, Any], message: str
) -> None:
    error = await caller.request_error("POST", DOWNLOAD, **body)
    assert (error["code"], message in error["message"]) == (400, True)


@pytest.mark.parametrize(("method", "route"), [("POST", ""), ("PUT", "/org/demo")])
async def test_creating_or_changing_an_endpoint_is_refused(
    caller: Caller, method: str, route: str
) -> None:
    error = await caller.request_error(method, f"{ENDPOINTS}{route}", name="a")
    assert (error["code"], "made on the platform" in error["message"]) == (400, True)
