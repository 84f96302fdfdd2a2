"""Tests of adapters that appear, change or disappear on the network volume of a running engine."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from model.conftest import Ask, WriteAdapter
from prometheus_client import REGISTRY
from support.engine.requests import text_of
from support.engine.scripted import failure
from support.models.lora import (
    BROKEN,
    REFUSED_BY_VLLM,
    set_config,
)
from support.releases import needs_vllm

from worker.app import Worker
from worker.engine import Engines
from worker.engine.run.adapters import DIRECTORY_PREFIX, AdapterCopies
from worker.errors import WorkerError
from worker.metrics import MergedRegistries
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

GREEDY = {"temperature": 0, "max_tokens": 8}
# Long enough for vLLM's prefix cache.
PROMPT = "Count: " * 100

# Calls a method of the engine on the engine's event loop.
Call = Callable[..., Awaitable[Any]]


@pytest.fixture
def worker(lora_engine: "InProcessEngine", settings: Settings) -> Worker:
    return Worker(Engines(lora_engine), settings)


@pytest.fixture
async def base_answer(ask: Ask) -> str:
    return await generate(ask)


@pytest.fixture
def call(lora_engine: "InProcessEngine") -> Call:
    def call(method: str, *arguments: Any) -> Awaitable[Any]:
        running = getattr(lora_engine, method)(*arguments)
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running, lora_engine.loop))

    return call


async def generate(ask: Ask, **keys: str) -> str:
    return text_of(await ask(prompt=PROMPT, sampling_params=GREEDY, **keys))


async def list_models(engine: "InProcessEngine") -> list[str]:
    parts = engine.call("/v1/models", None, "models")
    models = json.loads(b"".join([part async for part in parts if isinstance(part, bytes)]))
    return [model["id"] for model in models["data"]]


async def refusal(ask: Ask, **keys: str) -> tuple[int, str]:
    error = failure(await ask(prompt=PROMPT, sampling_params=GREEDY, **keys))
    return error["code"], error["message"]


async def test_an_adapter_that_appears_on_the_volume_is_served_without_a_restart(
    ask: Ask,
    write_adapter: WriteAdapter,
    base_answer: str,
    call: Call,
    lora_engine: "InProcessEngine",
) -> None:
    assert (await refusal(ask, lora="new"))[0] == 404
    write_adapter("new")
    assert "new" in await call("adapter_problems_on_volume")
    by_lora, by_model, running = await asyncio.gather(
        generate(ask, lora="new"), generate(ask, model="new"), generate(ask)
    )
    assert by_lora == by_model != running == base_answer
    assert "new" in await list_models(lora_engine)


async def test_an_unknown_name_is_refused_with_a_similar_adapter_or_all(
    ask: Ask, write_adapter: WriteAdapter
) -> None:
    write_adapter("fairy-tales")
    status, message = await refusal(ask, lora="fairy-tale")
    assert (status, message.endswith("; did you mean 'fairy-tales'?")) == (404, True)
    status, message = await refusal(ask, model="another")
    assert (status, "; this worker serves demo, " in message) == (404, True)
    assert "fairy-tales" in message


async def test_the_metrics_have_the_same_series_whatever_adapters_are_in_use(
    ask: Ask, write_adapter: WriteAdapter, lora_engine: "InProcessEngine"
) -> None:
    names = [f"used-{number}" for number in range(4)]
    for name in names:
        write_adapter(name)

    def series() -> set[tuple[str, str]]:
        registries = MergedRegistries([REGISTRY, lora_engine.metrics])
        samples = [sample for family in registries.collect() for sample in family.samples]
        return {(sample.name, str(sorted(sample.labels.items()))) for sample in samples}

    await generate(ask)
    before = series()
    assert ("vllm:generation_tokens_total", "[('engine', '0'), ('model_name', 'demo')]") in before
    for order in (names, names[::-1], [*names[2:], *names[:2]]):
        await asyncio.gather(*(generate(ask, lora=name, user=name) for name in order))
    assert (await refusal(ask, lora="unknown"))[0] == 404
    assert series() == before


async def test_concurrent_requests_load_an_adapter_once(
    ask: Ask, write_adapter: WriteAdapter, base_answer: str
) -> None:
    write_adapter("busy")
    (answer,) = set(await asyncio.gather(*(generate(ask, lora="busy") for _ in range(8))))
    assert answer != base_answer
    copies = f"{DIRECTORY_PREFIX}{os.getpid()}-*/busy-*"
    found = [*Path(tempfile.gettempdir()).glob(copies)]  # noqa: ASYNC240 - a local disk
    assert len(found) == 1


@needs_vllm("0.31", "vLLM knew the prefixes that it caches by the adapter's name alone")
async def test_a_replaced_adapter_has_its_new_weights(
    ask: Ask, write_adapter: WriteAdapter, base_answer: str
) -> None:
    write_adapter("other", seed=3)
    answers = []
    for seed in (1, 3, 1):
        write_adapter("fickle", seed=seed)
        answers.append(await generate(ask, lora="fickle"))
    first, second, again = answers
    assert second == await generate(ask, lora="other")
    assert again == first
    assert len({first, second, base_answer}) == 3


async def test_a_removed_adapter_is_no_longer_served(
    ask: Ask, write_adapter: WriteAdapter, call: Call, lora_engine: "InProcessEngine"
) -> None:
    folder = write_adapter("gone")
    await generate(ask, lora="gone")
    shutil.rmtree(folder)
    status, message = await refusal(ask, lora="gone")
    assert (status, "'gone'" in message) == (404, True)
    assert "gone" not in await list_models(lora_engine)
    assert "gone" not in await call("adapter_problems_on_volume")


@pytest.mark.slow
async def test_a_running_request_continues_with_a_removed_adapter(
    ask: Ask, write_adapter: WriteAdapter
) -> None:
    write_adapter("staying")
    folder = write_adapter("leaving")
    params = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    staying, leaving = (
        asyncio.create_task(ask(prompt="Count:", lora=name, sampling_params=params))
        for name in ("staying", "leaving")
    )
    await generate(ask, lora="leaving")  # by then, the first requests run
    shutil.rmtree(folder)
    assert (await refusal(ask, lora="leaving"))[0] == 404
    assert not leaving.done()
    assert text_of(await leaving) == text_of(await staying)


@pytest.mark.parametrize("name", ["never-there", "demo", ".."])
async def test_an_adapter_that_is_not_loaded_cannot_be_unloaded(name: str, call: Call) -> None:
    with pytest.raises(WorkerError) as caught:
        await call("unload_adapter", name)
    assert caught.value.status == 404


# tests/unit/engine uses the other rows of BROKEN.
BROKEN_ADAPTERS = {
    name: BROKEN[name] for name in ("no-config", "no-weights", "pickled", "truncated")
}
BROKEN_ADAPTERS |= REFUSED_BY_VLLM


@pytest.mark.parametrize("name", BROKEN_ADAPTERS)
async def test_a_broken_adapter_is_refused_and_the_engine_continues(
    name: str,
    ask: Ask,
    write_adapter: WriteAdapter,
    base_answer: str,
    call: Call,
    lora_engine: "InProcessEngine",
) -> None:
    change, reason = BROKEN_ADAPTERS[name]
    change(folder := write_adapter(name))
    (status, message), running = await asyncio.gather(refusal(ask, lora=name), generate(ask))
    assert status == 400
    assert reason in message
    assert str(folder.parent) not in message
    with pytest.raises(WorkerError) as caught:
        await call("load_adapter", name)
    assert (caught.value.status, caught.value.message) == (status, message)
    # An adapter that lacks a file does not yet count as an adapter on the volume.
    on_volume = await call("adapter_problems_on_volume")
    assert reason in on_volume.get(name, reason)
    assert running == await generate(ask) == base_answer
    assert name not in await list_models(lora_engine)


async def test_a_repaired_adapter_is_served(
    ask: Ask, write_adapter: WriteAdapter, base_answer: str, call: Call
) -> None:
    set_config(r=5)(write_adapter("mended"))
    # The listing checks the files of an adapter before a request names it.
    assert "but r is 5" in (await call("adapter_problems_on_volume"))["mended"]
    assert (await refusal(ask, lora="mended"))[0] == 400
    write_adapter("mended")
    assert await generate(ask, lora="mended") != base_answer
    assert (await call("adapter_problems_on_volume"))["mended"] is None


# tests/unit/volume has more of these names.
@pytest.mark.parametrize("name", ["../outside", "{volume}/adapters/inside", "linked", "\ud800"])
async def test_no_adapter_name_leads_out_of_the_folder(
    name: str, ask: Ask, write_adapter: WriteAdapter, volume: Path, call: Call
) -> None:
    write_adapter("inside")
    if not (volume / "outside").exists():
        shutil.copytree(volume / "adapters" / "inside", volume / "outside")
        (volume / "adapters" / "linked").symlink_to(volume / "outside")
    lora = name.format(volume=volume)
    status, message = await refusal(ask, lora=lora)
    assert (status, "no model or adapter" in message) == (404, True)
    assert ("adapters/linked leads out of adapters/ by a symlink" in message) == (name == "linked")
    assert lora not in await call("adapter_problems_on_volume")
    with pytest.raises(WorkerError) as caught:
        await call("load_adapter", lora)
    assert caught.value.status == 404


async def test_an_adapter_with_the_name_of_the_model_is_not_served(
    ask: Ask, write_adapter: WriteAdapter, base_answer: str, demo_model: Path, call: Call
) -> None:
    write_adapter(demo_model.name, seed=2)
    with pytest.raises(WorkerError) as caught:
        await call("load_adapter", demo_model.name)
    assert caught.value.status == 404
    assert await generate(ask, model=demo_model.name) == base_answer


def test_copies_of_adapters_are_deleted_with_their_engine() -> None:
    copies = AdapterCopies()
    copy = copies.create_directory("mine", size=1)
    assert copy.exists()
    del copies
    assert not copy.parent.exists()
