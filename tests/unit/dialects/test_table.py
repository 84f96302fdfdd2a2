"""Routes of the OpenAI path that the worker answers itself: models, health, metrics."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families
from support.engine.scripted import CHAT, ScriptedEngine, failure, static_app, yields_of

from worker.dialects.table import ROUTES
from worker.engine import Model

ALLOWED = {"ALLOW_UNLOAD_LORA_ADAPTER": "1"}
UNLOAD = "/v1/unload_lora_adapter"


def card(name: str, parent: str | None = None, root: str | None = None) -> dict[str, Any]:
    return {"id": name, "object": "model", "parent": parent, "root": root or name, "owned_by": "v"}


def model_list(*cards: dict[str, Any]) -> Any:
    return static_app(json.dumps({"object": "list", "data": cards}))


@pytest.fixture(autouse=True)
def _serve_model_list(engine: ScriptedEngine) -> None:
    engine.app = model_list(card("demo"))


@pytest.fixture
def embedder(embedder: ScriptedEngine) -> ScriptedEngine:
    embedder.app = model_list(card("org/minilm"))
    embedder.model = Model(("org/minilm", "e"), 512, "cpu", frozenset({"embed"}))
    return embedder


async def get(engine: ScriptedEngine, route: str, **environ: str) -> Any:
    (answer,) = await yields_of(engine, {"openai_route": route}, **environ)
    return answer


async def get_error(engine: ScriptedEngine, route: str, **environ: str) -> tuple[int, str]:
    error = failure(await yields_of(engine, {"openai_route": route}, **environ))
    return error["code"], error["message"]


# Models:


@pytest.mark.usefixtures("embedder")
async def test_the_models_of_every_engine_are_listed(engine: ScriptedEngine) -> None:
    cards = [card("demo"), card("org/minilm")]
    assert await get(engine, "/v1/models") == {"object": "list", "data": cards}


async def test_adapters_on_the_volume_are_listed_once_without_paths(engine: ScriptedEngine) -> None:
    engine.app = model_list(card("demo"), card("loaded", "demo", "/runpod-volume/loras/a"))
    engine.adapters = ["loaded", "demo", "waiting"]
    cards = [card("demo"), card("loaded", "demo"), card("waiting", "demo")]
    assert (await get(engine, "/v1/models"))["data"] == cards
    assert await get(engine, "/v1/models/waiting") == card("waiting", "demo")


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize("route", ["/v1/models/org/minilm", "/models/org/minilm/", "models/demo"])
async def test_a_model_name_may_have_slashes(engine: ScriptedEngine, route: str) -> None:
    assert await get(engine, route) == card(route.strip("/").partition("models/")[2])


async def test_a_broken_adapter_is_described_but_not_listed(engine: ScriptedEngine) -> None:
    engine.broken_adapters = {"pirate": "rank 64"}
    assert (await get(engine, "/v1/models/pirate"))["problem"] == "rank 64"
    assert (await get(engine, "/v1/models"))["data"] == [card("demo")]
    _, message = await get_error(engine, "/v1/models/pirates")
    assert message == "There is no model 'pirates'; this worker serves demo."


async def test_the_refusal_of_a_linked_adapter_has_the_reason(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "linked").symlink_to(tmp_path)
    refusal = "There is no model 'linked'; this worker serves demo."
    _, message = await get_error(engine, "/v1/models/linked", BASE_PATH=str(tmp_path))
    assert message == refusal
    engine.model = replace(engine.model, max_lora_rank=16)
    _, message = await get_error(engine, "/v1/models/linked", BASE_PATH=str(tmp_path))
    link = "adapters/linked leads out of adapters/ by a symlink: copy the files into it."
    assert message == f"{refusal} {link}"


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("minilm", "did you mean 'org/minilm'?"),
        ("models/demo", "this worker serves demo, org/minilm."),
    ],
)
async def test_an_unknown_model_is_refused_with_a_similar_one_or_all(
    engine: ScriptedEngine, name: str, advice: str
) -> None:
    message = f"There is no model '{name}'; {advice}"
    assert await get_error(engine, f"/v1/models/{name}") == (404, message)


async def test_only_some_of_many_models_are_listed(engine: ScriptedEngine) -> None:
    engine.adapters = [f"adapter-{number}" for number in range(30)]
    _, message = await get_error(engine, "/v1/models/other")
    assert message.endswith("adapter-18 and 11 more.")


async def test_a_dead_engine_lists_no_models(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    embedder.mark_dead()
    assert (await get(engine, "/v1/models"))["data"] == [card("demo")]
    assert await get(engine, "/v1/models/demo") == card("demo")
    for name in ("org/minilm", "unknown"):  # both may be names of the dead engine's models
        assert (await get_error(engine, f"/v1/models/{name}"))[0] == 503
    engine.mark_dead()
    assert (await get_error(engine, "/v1/models"))[0] == 503


# Adapters:


def unload_payload(body: Any, route: str = UNLOAD) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body}


async def test_an_adapter_is_unloaded_by_name_if_the_operator_allows_it(
    engine: ScriptedEngine,
) -> None:
    engine.adapters = ["pirate", "poet"]
    error = failure(await yields_of(engine, unload_payload({"lora_name": "pirate"})))
    assert (error["code"], "ALLOW_UNLOAD_LORA_ADAPTER=1" in error["message"]) == (404, True)
    for body in ({"lora_name": 5}, None):
        error = failure(await yields_of(engine, unload_payload(body), **ALLOWED))
        assert (error["code"], error["param"]) == (400, "lora_name")
        assert error["message"] == "lora_name: the name of an adapter"
    assert engine.adapters == ["pirate", "poet"]
    payload = unload_payload({"lora_name": "pirate"}, "/unload_lora_adapter")
    assert await yields_of(engine, payload, **ALLOWED) == [{"unloaded": "pirate"}]
    assert engine.adapters == ["poet"]


# Health and status:


async def test_health_reports_every_engine(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    ready = {"demo": "ready", "org/minilm": "ready"}
    assert await get(engine, "/health") == {"status": "ok", "models": ready}
    embedder.mark_dead()
    starting = ready | {"org/minilm": "starting"}
    assert await get(engine, "/health") == {"status": "ok", "models": starting}
    engine.mark_dead()
    assert (await get_error(engine, "/health"))[0] == 503


async def test_the_status_has_the_keys_of_the_model_serving_api(engine: ScriptedEngine) -> None:
    engine.model = Model(("demo", "d"), 1024, "cuda", frozenset({"generate"}), 0.2, 99)
    local = {"RUNPOD_ENDPOINT_BASE_URL": "http://127.0.0.1:8000/v2", "RUNPOD_ENDPOINT_ID": "local"}
    url = (await get(engine, "/chat", **local))["llm_serving_url"]
    assert url == "http://127.0.0.1:8000/v2/local/openai/v1"
    environ = {"RUNPOD_ENDPOINT_ID": "abc123", "SYSTEM_PROMPT": "Be brief."}
    environ |= {"RUNPOD_VOLUME_ID": "euvolume01", "RUNPOD_DC_ID": "EU-RO-1"}
    assert await get(engine, "/chat", **environ) == {
        "status": "running",
        "llm_serving_url": "https://api.runpod.ai/v2/abc123/openai/v1",
        "model_name": "demo",
        "max_new_tokens": 99,
        "device": "cuda",
        "do_sample": True,
        "system_prompt": "Be brief.",
        "network_volume": "euvolume01",
        "data_center": "EU-RO-1",
    }


async def test_the_status_has_values_for_missing_settings(engine: ScriptedEngine) -> None:
    for temperature, samples in ((None, True), (0.0, False)):
        engine.model = Model(("demo",), 1024, "cpu", frozenset({"generate"}), temperature)
        status = await get(engine, "/v1/chat")
        assert (status["do_sample"], status["max_new_tokens"]) == (samples, 1024)
        assert (status["llm_serving_url"], status["system_prompt"]) == (None, None)
    engine.mark_dead()
    message = "You need to start the service first."
    assert await get(engine, "/chat") == {"status": "not started", "message": message}


# Metrics:


async def test_metrics_of_the_process_and_of_both_engines_are_merged(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    for owner, count in ((engine, 3), (embedder, 4)):
        counter = Counter("vllm:asked", "Requests.", ["model"], registry=owner.metrics)
        counter.labels(model=owner.model.names[0]).inc(count)
    Gauge("vllm:alone", "Of one.", registry=embedder.metrics).set(1)
    await get(engine, "/metrics")  # merging must not change the registries
    metrics = await get(engine, "/metrics")
    families = list(text_string_to_metric_families(metrics))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert metrics.count("# TYPE vllm:asked_total counter") == 1
    samples = [sample for family in families for sample in family.samples]
    totals = {one.labels["model"]: one.value for one in samples if one.name == "vllm:asked_total"}
    assert totals == {"demo": 3, "org/minilm": 4}
    assert "vllm:alone 1.0" in metrics
    assert any(name.startswith("process_") for name in names)


# The OpenAPI document:


def openapi_schema(path: str, schema: str, title: str = "vLLM") -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": {path: {"post": {"summary": f"{title}'s"}}, "/sleep": {"post": {}}},
        "components": {"schemas": {schema: {"type": "object"}}},
    }


async def test_the_openapi_document_describes_only_the_served_routes(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    engine.openapi_schema = openapi_schema(CHAT, "Chat")
    embedder.openapi_schema = openapi_schema("/v1/embeddings", "Embed", "embedder")
    document = await get(engine, "/openapi.json")
    own = {route.path_template for route in ROUTES if route.handler or route.generate}
    paths = document.pop("paths")
    assert set(paths) == own | {CHAT, "/v1/embeddings"}
    assert paths[CHAT] == {"post": {"summary": "vLLM's"}}
    assert paths["/v1/embeddings"] == {"post": {"summary": "embedder's"}}
    assert document == {
        "openapi": "3.1.0",
        "info": {"title": "LLM worker", "version": "1"},
        "components": {"schemas": {"Chat": {"type": "object"}, "Embed": {"type": "object"}}},
    }


async def test_each_of_the_workers_own_routes_has_a_one_line_summary(
    engine: ScriptedEngine,
) -> None:
    paths = (await get(engine, "/openapi.json"))["paths"]
    summary = "Report whether the main engine is alive, and the state of each engine."
    success = {"200": {"description": "Successful Response"}}
    assert paths["/health"] == {"get": {"summary": summary, "responses": success}}
    assert list(paths[UNLOAD]) == ["post"]
    # vLLM's description of a route replaces the worker's.
    engine.openapi_schema = openapi_schema("/v1/models", "Models")
    described_route = (await get(engine, "/openapi.json"))["paths"]["/v1/models"]
    assert described_route == {"post": {"summary": "vLLM's"}}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    assert paths["/v1/models/{model}"]["get"]["parameters"] == [model]
    assert all(line["summary"] for path in paths.values() for line in path.values())
