"""Models in LLM Engine's words: lists, where files are, and adapters that are deleted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine, replying

from worker.volume.adapters import CONFIG, MADE, WEIGHTS

ENDPOINTS = "/v1/llm/model-endpoints"
DOWNLOAD = f"{ENDPOINTS}/download"
ALLOWED = {"ALLOW_UNLOAD_LORA_ADAPTER": "1"}


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """Return the directory of the adapter "tuned"."""
    folder = tmp_path / "adapters" / "tuned"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(b"weights")
    return folder


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path, tuned: Path) -> Caller:
    parents = {"org/demo": None, "given": "org/demo"}
    cards = [{"id": name, "parent": parent, "root": name} for name, parent in parents.items()]
    engine.app = replying(json.dumps({"object": "list", "data": cards}))
    engine.adapters = [tuned.name]
    return Caller(engine, tmp_path, BASE_PATH=str(tmp_path))


def configured(caller: Caller, environ: dict[str, str]) -> Caller:
    return Caller(caller.engine, caller.root, BASE_PATH=str(caller.root), **environ)


async def test_models_and_adapters_are_listed_with_their_base(caller: Caller) -> None:
    caller.engine.model = replace(caller.engine.model, gpus=4, quantization="awq_marlin")
    found = (await caller.get(ENDPOINTS))["model_endpoints"]
    names = [(one["name"], one["model_name"]) for one in found]
    assert names == [("org/demo", "org/demo"), ("given", "org/demo"), ("tuned", "org/demo")]
    for one in found:
        assert (one["quantize"], one["num_shards"]) == ("awq", 4)
        assert (one["source"], one["status"]) == ("hugging_face", "READY")
    assert await caller.get(f"{ENDPOINTS}/org/demo") == found[0]
    # The client does not know all of them.
    caller.engine.model = replace(caller.engine.model, quantization="fp8")
    assert (await caller.get(f"{ENDPOINTS}/org/demo"))["quantize"] is None


# A model may be called as a route is: "download" is none here.
@pytest.mark.parametrize(
    ("method", "name"), [("GET", "a/b"), ("DELETE", "a/b"), ("DELETE", "download")]
)
async def test_a_name_that_is_not_served_is_404(caller: Caller, method: str, name: str) -> None:
    error = await configured(caller, ALLOWED).refused(method, f"{ENDPOINTS}/{name}")
    assert (error["code"], f"'{name}'" in error["message"]) == (404, True)


@pytest.mark.parametrize("environ", [ALLOWED, {}], ids=["allowed", "of a fine-tune"])
async def test_an_adapter_is_deleted_and_unloaded(
    caller: Caller, tuned: Path, environ: dict[str, str]
) -> None:
    if not environ:
        (tuned / MADE).write_text('{"id": "ftjob-a"}')
    delete = {"route": f"{ENDPOINTS}/tuned", "method": "DELETE"}
    assert await configured(caller, environ).job(**delete) == {"deleted": True}
    assert (list(tuned.parent.iterdir()), caller.engine.adapters) == ([], [])


@pytest.mark.parametrize(
    ("name", "environ", "message"),
    [
        ("org/demo", ALLOWED, "is a base model"),
        ("given", ALLOWED, "(LORA_MODULES)"),
        ("tuned", {}, "ALLOW_UNLOAD_LORA_ADAPTER=1"),
    ],
)
async def test_what_is_the_endpoints_own_is_not_deleted(
    caller: Caller, tuned: Path, name: str, environ: dict[str, str], message: str
) -> None:
    error = await configured(caller, environ).refused("DELETE", f"{ENDPOINTS}/{name}")
    assert (error["code"], message in error["message"]) == (400, True)
    assert (tuned / WEIGHTS).is_file()


async def test_a_model_from_the_hub_is_downloaded_there(caller: Caller, tmp_path: Path) -> None:
    place = tmp_path / "snapshot"
    (place / "sub").mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place / "sub" / "a b.txt").write_text("")
    model = replace(caller.engine.model, source="org/demo", place=place, commit="c" * 40)
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
        # A job can't hold them.
        ({"model_name": "tuned"}, f"adapters/tuned/{CONFIG}, adapters/tuned/{WEIGHTS}"),
        ({"model_name": "tuned", "download_format": "gguf"}, "download_format"),
        ({}, "model_name"),
    ],
)
async def test_other_downloads_are_refused(
    caller: Caller, body: dict[str, Any], message: str
) -> None:
    error = await caller.refused("POST", DOWNLOAD, **body)
    assert (error["code"], message in error["message"]) == (400, True)


@pytest.mark.parametrize(("method", "route"), [("POST", ""), ("PUT", "/org/demo")])
async def test_endpoints_are_made_elsewhere(caller: Caller, method: str, route: str) -> None:
    error = await caller.refused(method, f"{ENDPOINTS}{route}", name="a")
    assert (error["code"], "made on the platform" in error["message"]) == (400, True)
