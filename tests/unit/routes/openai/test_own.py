"""Routes of the OpenAI path that the worker answers itself: models, health, metrics."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families
from support.engine.scripted import CHAT, ScriptedEngine, failure, replying, yields_of

from worker.engine import Model
from worker.routes.openai import ROUTES
from worker.settings import TELLING

ALLOWED = {"ALLOW_UNLOAD_LORA_ADAPTER": "1"}


def card(name: str, parent: str | None = None, root: str | None = None) -> dict[str, Any]:
    return {"id": name, "object": "model", "parent": parent, "root": root or name, "owned_by": "v"}


def listing(*cards: dict[str, Any]) -> Any:
    return replying(json.dumps({"object": "list", "data": cards}))


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(app=listing(card("demo"))) as engine:
        yield engine


@pytest.fixture
def embedder(engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    """A second engine, for embeddings."""
    with ScriptedEngine(app=listing(card("org/minilm"))) as second:
        second.model = Model(("org/minilm", "e"), 512, "cpu", frozenset({"embed"}))
        engine.embedder = second
        yield second


async def got(engine: ScriptedEngine, route: str, **environ: str) -> Any:
    (answer,) = await yields_of(engine, {"openai_route": route}, **environ)
    return answer


async def refused(
    engine: ScriptedEngine, payload: dict[str, Any], **environ: str
) -> dict[str, Any]:
    return failure(await yields_of(engine, payload, **environ))


# Models:


@pytest.mark.usefixtures("embedder")
async def test_the_models_of_every_engine_are_listed(engine: ScriptedEngine) -> None:
    assert await got(engine, "/v1/models") == {
        "object": "list",
        "data": [card("demo"), card("org/minilm")],
    }


async def test_the_path_of_a_loaded_adapter_is_not_shown(engine: ScriptedEngine) -> None:
    engine.app = listing(card("demo"), card("pirate", "demo", "/runpod-volume/loras/pirate"))
    listed = (await got(engine, "/v1/models"))["data"]
    assert listed == [card("demo"), card("pirate", "demo", "pirate")]


async def test_adapters_that_wait_on_the_volume_are_listed_once(engine: ScriptedEngine) -> None:
    engine.app = listing(card("demo"), card("loaded", "demo", "/a/path"))
    engine.adapters = ["loaded", "demo", "waiting"]
    listed = (await got(engine, "/v1/models"))["data"]
    assert listed == [card("demo"), card("loaded", "demo"), card("waiting", "demo")]


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize("route", ["/v1/models/org/minilm", "/models/org/minilm/", "models/demo"])
async def test_a_model_is_described_by_its_name_slashes_and_all(
    engine: ScriptedEngine, route: str
) -> None:
    name = route.strip("/").partition("models/")[2]
    assert await got(engine, route) == card(name)


async def test_an_adapter_that_waits_is_described_too(engine: ScriptedEngine) -> None:
    engine.adapters = ["pirate"]
    assert await got(engine, "/v1/models/pirate") == card("pirate", "demo")
    # One that can't be loaded is described, but not listed.
    engine.adapters, engine.broken_adapters = [], {"pirate": "rank 64"}
    assert (await got(engine, "/v1/models/pirate"))["problem"] == "rank 64"
    assert (await got(engine, "/v1/models"))["data"] == [card("demo")]


@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize("name", ["minilm", "org", "Demo", "models/demo"])
async def test_a_refusal_of_an_unknown_model_lists_the_served_models(
    engine: ScriptedEngine, name: str
) -> None:
    error = await refused(engine, {"openai_route": f"/v1/models/{name}"})
    message = f"There is no model '{name}'; this worker serves demo, org/minilm."
    assert (error["code"], error["message"]) == (404, message)


async def test_an_engine_that_is_started_again_has_no_models_meanwhile(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    embedder.mark_dead()
    assert (await got(engine, "/v1/models"))["data"] == [card("demo")]
    assert await got(engine, "/v1/models/demo") == card("demo")
    for name in ("org/minilm", "unknown"):  # either may be the dead engine's
        assert (await refused(engine, {"openai_route": f"/v1/models/{name}"}))["code"] == 503
    engine.mark_dead()
    assert (await refused(engine, {"openai_route": "/v1/models"}))["code"] == 503


# Adapters:


@pytest.mark.parametrize("route", ["/v1/unload_lora_adapter", "/unload_lora_adapter"])
async def test_an_adapter_is_forgotten(engine: ScriptedEngine, route: str) -> None:
    engine.adapters = ["pirate", "poet"]
    payload = {"openai_route": route, "openai_input": {"lora_name": "pirate"}}
    assert await yields_of(engine, payload, **ALLOWED) == [{"unloaded": "pirate"}]
    assert engine.adapters == ["poet"]


async def test_an_adapter_is_not_forgotten_unless_the_operator_allows_it(
    engine: ScriptedEngine,
) -> None:
    engine.adapters = ["pirate"]
    body = {"lora_name": "pirate"}
    payload = {"openai_route": "/v1/unload_lora_adapter", "openai_input": body}
    error = await refused(engine, payload)
    assert error["code"] == 404
    assert "ALLOW_UNLOAD_LORA_ADAPTER=1" in error["message"]
    assert engine.adapters == ["pirate"]


@pytest.mark.parametrize("body", [{"lora_name": None}, {"lora_name": 5}, {"name": "pirate"}, None])
async def test_an_adapter_to_forget_must_be_named(engine: ScriptedEngine, body: Any) -> None:
    payload = {"route": "/v1/unload_lora_adapter", "method": "POST", "body": body}
    error = await refused(engine, payload, **ALLOWED)
    assert (error["code"], error["param"]) == (400, "lora_name")
    assert error["message"] == "lora_name: the name of an adapter"


# Routes that are turned off:


@pytest.mark.parametrize("route", TELLING)
async def test_a_route_that_is_turned_off_is_as_one_that_does_not_exist(
    engine: ScriptedEngine, route: str
) -> None:
    error = await refused(engine, {"openai_route": route}, DISABLED_ROUTES=",".join(TELLING))
    assert error["code"] == 404
    assert not any(f"GET {other}," in error["message"] for other in TELLING)
    assert "GET /health" in error["message"]


def test_every_route_that_can_be_turned_off_is_one() -> None:
    assert {route.path for route in ROUTES} >= set(TELLING)


async def test_a_route_that_is_turned_off_is_not_described(engine: ScriptedEngine) -> None:
    paths = (await got(engine, "/openapi.json", DISABLED_ROUTES="/metrics, /chat"))["paths"]
    assert "/health" in paths
    assert not {"/metrics", "/chat"} & set(paths)


# Health and status:


async def test_health_has_the_state_of_every_engine(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    ready = {"demo": "ready", "org/minilm": "ready"}
    assert await got(engine, "/health") == {"status": "ok", "models": ready}
    embedder.mark_dead()
    starting = ready | {"org/minilm": "starting"}
    assert await got(engine, "/health") == {"status": "ok", "models": starting}
    engine.mark_dead()
    assert (await refused(engine, {"openai_route": "/health"}))["code"] == 503


async def test_the_status_has_the_keys_of_the_model_serving_api(engine: ScriptedEngine) -> None:
    engine.model = Model(("demo", "d"), 1024, "cuda", frozenset({"generate"}), 0.2, 99)
    environ = {"RUNPOD_ENDPOINT_ID": "abc123", "SYSTEM_PROMPT": "Be brief."}
    assert await got(engine, "/chat", **environ) == {
        "status": "running",
        "llm_serving_url": "https://api.runpod.ai/v2/abc123/openai/v1",
        "model_name": "demo",
        "max_new_tokens": 99,
        "device": "cuda",
        "do_sample": True,
        "system_prompt": "Be brief.",
    }


async def test_the_status_of_a_local_endpoint_has_its_own_address(engine: ScriptedEngine) -> None:
    local = {"RUNPOD_ENDPOINT_BASE_URL": "http://127.0.0.1:8000/v2", "RUNPOD_ENDPOINT_ID": "local"}
    url = (await got(engine, "/chat", **local))["llm_serving_url"]
    assert url == "http://127.0.0.1:8000/v2/local/openai/v1"


@pytest.mark.parametrize(("temperature", "samples"), [(None, True), (0.0, False), (1.0, True)])
async def test_the_status_has_values_for_what_is_not_set(
    engine: ScriptedEngine, temperature: float | None, samples: bool
) -> None:
    engine.model = Model(("demo",), 1024, "cpu", frozenset({"generate"}), temperature)
    status = await got(engine, "/v1/chat")
    assert (status["do_sample"], status["max_new_tokens"]) == (samples, 1024)
    assert (status["llm_serving_url"], status["system_prompt"]) == (None, None)


async def test_the_status_of_a_dead_engine_is_not_started(engine: ScriptedEngine) -> None:
    engine.mark_dead()
    status = {"status": "not started", "message": "You need to start the service first."}
    assert await got(engine, "/chat") == status


@pytest.mark.parametrize("route", ["/chat", "/health", "/models", "/models/demo", "/metrics"])
async def test_read_only_routes_take_get(engine: ScriptedEngine, route: str) -> None:
    assert await yields_of(engine, {"route": route, "method": "GET"})
    error = await refused(engine, {"route": route, "method": "POST"})
    assert (error["code"], error["message"].endswith(" takes GET.")) == (405, True)


# Metrics:


async def test_a_metric_family_of_both_engines_appears_once(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    for owner in (engine, embedder):
        counter = Counter("vllm:asked", "Requests.", ["model"], registry=owner.metrics)
        counter.labels(model=owner.model.names[0]).inc(3 if owner is engine else 4)
    Gauge("vllm:alone", "Of one.", registry=embedder.metrics).set(1)
    for _ in range(2):  # merging changes none of them
        metrics = await got(engine, "/metrics")
        families = list(text_string_to_metric_families(metrics))
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        assert metrics.count("# TYPE vllm:asked_total counter") == 1
        totals = {
            sample.labels["model"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "vllm:asked_total"
        }
        assert totals == {"demo": 3, "org/minilm": 4}
        assert "vllm:alone 1.0" in metrics


async def test_the_processs_own_metrics_are_included(engine: ScriptedEngine) -> None:
    counter = Counter("worker_test", "Of the process.")
    try:
        assert "worker_test_total 0.0" in await got(engine, "/metrics")
    finally:
        REGISTRY.unregister(counter)


# The document:


def described(path: str, schema: str, title: str = "vLLM") -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": {path: {"post": {"summary": f"{title}'s"}}, "/sleep": {"post": {}}},
        "components": {"schemas": {schema: {"type": "object"}}},
    }


async def test_the_document_describes_what_is_served_and_nothing_else(
    engine: ScriptedEngine, embedder: ScriptedEngine
) -> None:
    engine.schema = described(CHAT, "Chat")
    embedder.schema = described("/v1/embeddings", "Embed", "embedder")
    document = await got(engine, "/openapi.json")
    own = {route.template for route in ROUTES if route.own or route.generate}
    assert set(document["paths"]) == own | {CHAT, "/v1/embeddings"}
    assert document["paths"][CHAT] == {"post": {"summary": "vLLM's"}}
    assert document["paths"]["/v1/embeddings"] == {"post": {"summary": "embedder's"}}
    assert document["components"] == {
        "schemas": {"Chat": {"type": "object"}, "Embed": {"type": "object"}}
    }
    assert (document["openapi"], document["info"]) == (
        "3.1.0",
        {"title": "LLM worker", "version": "1"},
    )


async def test_vllms_words_for_a_route_of_the_workers_win(engine: ScriptedEngine) -> None:
    engine.schema = described("/v1/models", "Models")
    document = await got(engine, "/openapi.json")
    assert document["paths"]["/v1/models"] == {"post": {"summary": "vLLM's"}}


async def test_the_workers_own_routes_are_described_in_a_line(engine: ScriptedEngine) -> None:
    paths = (await got(engine, "/openapi.json"))["paths"]
    summary = "Tell whether the model answers, and how each engine is."
    success = {"200": {"description": "Successful Response"}}
    assert paths["/health"] == {"get": {"summary": summary, "responses": success}}
    assert list(paths["/v1/unload_lora_adapter"]) == ["post"]
    assert paths["/v1/models/{model}"]["get"]["parameters"] == [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    assert all(line["summary"] for path in paths.values() for line in path.values())
