"""Models in LLM Engine's words: lists, where files are, and adapters that are deleted."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, failure, replying, yields_of
from support.models.lora import CONFIG, WEIGHTS

from worker.volume.adapters import MADE

ENDPOINTS = "/v1/llm/model-endpoints"
ALLOWED = {"ALLOW_UNLOAD_LORA_ADAPTER": "1"}


def card(name: str, parent: str | None = None) -> dict[str, Any]:
    return {"id": name, "parent": parent, "root": name}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a volume with the adapter "tuned"."""
    folder = tmp_path / "adapters" / "tuned"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(b"weights")
    return tmp_path


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    cards = [card("org/demo"), card("given", "org/demo")]
    listing = replying(json.dumps({"object": "list", "data": cards}))
    with ScriptedEngine(app=listing) as scripted:
        scripted.adapters = ["tuned"]
        yield scripted


async def asked(
    engine: ScriptedEngine, volume: Path, method: str, route: str, body: Any = None, **environ: str
) -> Any:
    payload = {"route": f"{ENDPOINTS}{route}", "method": method, "body": body}
    (only,) = await yields_of(engine, payload, BASE_PATH=str(volume), **environ)
    return only


async def refusal(
    engine: ScriptedEngine, volume: Path, method: str, route: str, body: Any = None, **environ: str
) -> tuple[int, str]:
    error = failure([await asked(engine, volume, method, route, body, **environ)])
    return error["code"], error["message"]


async def test_models_and_adapters_are_listed_with_their_base(
    engine: ScriptedEngine, volume: Path
) -> None:
    engine.model = replace(engine.model, gpus=4, quantization="awq_marlin")
    found = (await asked(engine, volume, "GET", ""))["model_endpoints"]
    names = [(one["name"], one["model_name"]) for one in found]
    assert names == [("org/demo", "org/demo"), ("given", "org/demo"), ("tuned", "org/demo")]
    assert {one["quantize"] for one in found} == {"awq"}
    assert {one["num_shards"] for one in found} == {4}
    assert {(one["source"], one["status"]) for one in found} == {("hugging_face", "READY")}
    assert await asked(engine, volume, "GET", "/org/demo") == found[0]


async def test_a_quantization_that_the_client_does_not_know_is_left_out(
    engine: ScriptedEngine, volume: Path
) -> None:
    engine.model = replace(engine.model, quantization="fp8")
    assert (await asked(engine, volume, "GET", "/org/demo"))["quantize"] is None


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_name_that_is_not_served_is_404(
    engine: ScriptedEngine, volume: Path, method: str
) -> None:
    code, message = await refusal(engine, volume, method, "/a/b", **ALLOWED)
    assert code == 404
    assert "'a/b'" in message


async def test_an_adapter_is_deleted_from_the_volume_and_unloaded(
    engine: ScriptedEngine, volume: Path
) -> None:
    answer = await asked(engine, volume, "DELETE", "/tuned", **ALLOWED)
    assert answer == {"deleted": True}
    assert list((volume / "adapters").iterdir()) == []
    assert engine.adapters == []


async def test_an_adapter_that_a_fine_tune_has_made_is_deleted_without_being_allowed(
    engine: ScriptedEngine, volume: Path
) -> None:
    (volume / "adapters" / "tuned" / MADE).write_text('{"id": "ftjob-a"}')
    assert await asked(engine, volume, "DELETE", "/tuned") == {"deleted": True}
    assert list((volume / "adapters").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "allowed", "message"),
    [
        ("org/demo", ALLOWED, "is a base model"),
        ("given", ALLOWED, "(LORA_MODULES)"),
        ("tuned", {}, "ALLOW_UNLOAD_LORA_ADAPTER=1"),
    ],
)
async def test_what_is_the_endpoints_own_is_not_deleted(
    engine: ScriptedEngine, volume: Path, name: str, allowed: dict[str, str], message: str
) -> None:
    code, told = await refusal(engine, volume, "DELETE", f"/{name}", **allowed)
    assert code == 400
    assert message in told
    assert (volume / "adapters" / "tuned" / WEIGHTS).is_file()


async def test_a_job_is_told_the_keys_of_an_adapters_files(
    engine: ScriptedEngine, volume: Path
) -> None:
    code, message = await refusal(engine, volume, "POST", "/download", {"model_name": "tuned"})
    assert code == 400
    assert f"adapters/tuned/{CONFIG}, adapters/tuned/{WEIGHTS}" in message


async def test_a_model_from_the_hub_is_downloaded_there(
    engine: ScriptedEngine, volume: Path
) -> None:
    place = volume / "snapshot"
    (place / "sub").mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place / "sub" / "a b.txt").write_text("")
    engine.model = replace(engine.model, source="org/demo", place=place, commit="c" * 40)
    body = {"model_name": "org/demo", "download_format": None}
    urls = (await asked(engine, volume, "POST", "/download", body))["urls"]
    assert urls.keys() == {"config.json", "sub/a b.txt"}
    assert urls["config.json"].endswith(f"/org/demo/resolve/{'c' * 40}/config.json")
    assert urls["sub/a b.txt"].endswith("/sub/a%20b.txt")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model_name": "org/demo"}, "was loaded from a directory"),
        ({"model_name": "given"}, "(LORA_MODULES)"),
        ({"model_name": "tuned", "download_format": "gguf"}, "download_format"),
        ({}, "model_name"),
        ({"model_name": 5}, "model_name"),
    ],
)
async def test_what_can_not_be_downloaded_is_refused(
    engine: ScriptedEngine, volume: Path, body: dict[str, Any], message: str
) -> None:
    code, told = await refusal(engine, volume, "POST", "/download", body)
    assert code == 400
    assert message in told


@pytest.mark.parametrize(("method", "route"), [("POST", ""), ("PUT", "/org/demo")])
async def test_endpoints_are_made_elsewhere(
    engine: ScriptedEngine, volume: Path, method: str, route: str
) -> None:
    code, message = await refusal(engine, volume, method, route, {"name": "a"})
    assert code == 400
    assert "made on the platform" in message
