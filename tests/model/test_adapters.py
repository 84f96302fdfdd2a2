"""Adapters that come, change and go on the network volume while an engine runs."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from model.conftest import Ask, launched
from support.engine.requests import text_of
from support.engine.scripted import failure
from support.models.lora import (
    BROKEN,
    MOST_RANK,
    REFUSED_BY_VLLM,
    configured,
    make_adapter,
)
from support.releases import since

from worker.app import Worker
from worker.engine import Engines
from worker.engine.run.adapters.copies import COPIES, Copies
from worker.errors import WorkerError
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

# More than the tests load at once: on a CPU vLLM would mix them up.
SLOTS = 16
GREEDY = {"temperature": 0, "max_tokens": 8}
# Long enough for vLLM's prefix cache.
PROMPT = "Count: " * 100

# Writes an adapter to the volume, or replaces it.
Make = Callable[..., Path]
# Returns what a method of the engine returns, on the engine's loop.
Call = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def lora_engine(settings: Settings, volume: Path) -> "Iterator[InProcessEngine]":
    options = {"ENABLE_LORA": "1", "MAX_LORA_RANK": str(MOST_RANK), "MAX_LORAS": str(SLOTS)}
    with launched(settings.model_copy(update={"base_path": volume}), **options) as engine:
        yield engine


@pytest.fixture
def worker(lora_engine: "InProcessEngine", settings: Settings) -> Worker:
    return Worker(Engines(lora_engine), settings)


@pytest.fixture
def make(volume: Path, demo_model: Path) -> Make:
    def make(name: str, seed: int = 1) -> Path:
        folder = volume / "adapters" / name
        shutil.rmtree(folder, ignore_errors=True)
        make_adapter(folder, demo_model, seed)
        return folder

    return make


@pytest.fixture
async def plain(ask: Ask) -> str:
    return await text(ask)


@pytest.fixture
def call(lora_engine: "InProcessEngine") -> Call:
    def call(method: str, *arguments: Any) -> Awaitable[Any]:
        running = getattr(lora_engine, method)(*arguments)
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running, lora_engine.loop))

    return call


async def text(ask: Ask, **keys: str) -> str:
    return text_of(await ask(prompt=PROMPT, sampling_params=GREEDY, **keys))


async def loaded(engine: "InProcessEngine") -> list[str]:
    parts = engine.call("/v1/models", None, "models")
    models = json.loads(b"".join([part async for part in parts if isinstance(part, bytes)]))
    return [model["id"] for model in models["data"]]


async def refusal(ask: Ask, **keys: str) -> tuple[int, str]:
    error = failure(await ask(prompt=PROMPT, sampling_params=GREEDY, **keys))
    return error["code"], error["message"]


async def test_an_adapter_that_appears_on_the_volume_is_served_without_a_restart(
    ask: Ask, make: Make, plain: str, call: Call, lora_engine: "InProcessEngine"
) -> None:
    assert (await refusal(ask, lora="new"))[0] == 404
    make("new")
    assert "new" in await call("adapters_on_volume")
    by_lora, by_model, running = await asyncio.gather(
        text(ask, lora="new"), text(ask, model="new"), text(ask)
    )
    assert by_lora == by_model != running == plain
    assert "new" in await loaded(lora_engine)


async def test_requests_at_once_load_an_adapter_once(ask: Ask, make: Make, plain: str) -> None:
    make("busy")
    (answer,) = set(await asyncio.gather(*(text(ask, lora="busy") for _ in range(8))))
    assert answer != plain
    copies = f"{COPIES}{os.getpid()}-*/busy-*"
    found = [*Path(tempfile.gettempdir()).glob(copies)]  # noqa: ASYNC240 - a local disk
    assert len(found) == 1


@since("0.31", "vLLM knew the prefixes that it caches by the adapter's name alone")
async def test_a_replaced_adapter_has_its_new_weights(ask: Ask, make: Make, plain: str) -> None:
    make("other", seed=3)
    answers = []
    for seed in (1, 3, 1):
        make("fickle", seed=seed)
        answers.append(await text(ask, lora="fickle"))
    first, second, again = answers
    assert second == await text(ask, lora="other")
    assert again == first
    assert len({first, second, plain}) == 3


async def test_a_removed_adapter_is_served_no_more(
    ask: Ask, make: Make, call: Call, lora_engine: "InProcessEngine"
) -> None:
    folder = make("gone")
    await text(ask, lora="gone")
    shutil.rmtree(folder)
    status, message = await refusal(ask, lora="gone")
    assert (status, "'gone'" in message) == (404, True)
    assert "gone" not in await loaded(lora_engine)
    assert "gone" not in await call("adapters_on_volume")


async def test_a_running_request_keeps_an_adapter_that_is_removed(ask: Ask, make: Make) -> None:
    folder = make("leaving")
    params = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    long = {"prompt": "Count:", "lora": "leaving", "sampling_params": params}
    undisturbed = await ask(**long)
    running = asyncio.create_task(ask(**long))
    await text(ask, lora="leaving")  # by then the first has begun, too
    shutil.rmtree(folder)
    assert (await refusal(ask, lora="leaving"))[0] == 404
    assert not running.done()
    assert await running == undisturbed


@pytest.mark.parametrize("name", ["never-there", "demo", ".."])
async def test_an_adapter_that_is_not_loaded_cannot_be_unloaded(name: str, call: Call) -> None:
    with pytest.raises(WorkerError) as refused:
        await call("unload", name)
    assert refused.value.status == 404


# The other rows of BROKEN are in tests/unit/engine.
UNFIT = {name: BROKEN[name] for name in ("no-config", "no-weights", "pickled", "truncated")}
UNFIT |= REFUSED_BY_VLLM


@pytest.mark.parametrize("name", UNFIT)
async def test_a_broken_adapter_is_refused_and_the_engine_answers_on(
    name: str, ask: Ask, make: Make, plain: str, call: Call, lora_engine: "InProcessEngine"
) -> None:
    change, reason = UNFIT[name]
    change(folder := make(name))
    (status, message), running = await asyncio.gather(refusal(ask, lora=name), text(ask))
    assert status == 400
    assert reason in message
    assert str(folder.parent) not in message
    with pytest.raises(WorkerError) as refused:
        await call("adopt", name)
    assert (refused.value.status, refused.value.message) == (status, message)
    # One that lacks a file is not on the volume yet.
    on_volume = await call("adapters_on_volume")
    assert reason in on_volume.get(name, reason)
    assert running == await text(ask) == plain
    assert name not in await loaded(lora_engine)


async def test_a_mended_adapter_is_served(ask: Ask, make: Make, plain: str, call: Call) -> None:
    configured(r=5)(make("mended"))
    # Its files are looked at before anybody names it.
    assert "but r is 5" in (await call("adapters_on_volume"))["mended"]
    assert (await refusal(ask, lora="mended"))[0] == 400
    make("mended")
    assert await text(ask, lora="mended") != plain
    assert (await call("adapters_on_volume"))["mended"] is None


# More of them are in tests/unit/volume.
@pytest.mark.parametrize("name", ["../outside", "{volume}/adapters/inside", "linked", "\ud800"])
async def test_no_name_leads_out(name: str, ask: Ask, make: Make, volume: Path, call: Call) -> None:
    make("inside")
    if not (volume / "outside").exists():
        shutil.copytree(volume / "adapters" / "inside", volume / "outside")
        (volume / "adapters" / "linked").symlink_to(volume / "outside")
    lora = name.format(volume=volume)
    status, message = await refusal(ask, lora=lora)
    assert (status, "no model or adapter" in message) == (404, True)
    assert lora not in await call("adapters_on_volume")
    with pytest.raises(WorkerError) as refused:
        await call("adopt", lora)
    assert refused.value.status == 404


async def test_the_models_own_name_is_never_an_adapters(
    ask: Ask, make: Make, plain: str, demo_model: Path, call: Call
) -> None:
    make(demo_model.name, seed=2)
    with pytest.raises(WorkerError) as refused:
        await call("adopt", demo_model.name)
    assert refused.value.status == 404
    assert await text(ask, model=demo_model.name) == plain


def test_copies_of_adapters_go_with_their_engine() -> None:
    copies = Copies()
    copy = copies.begin("mine", size=1)
    assert copy.exists()
    del copies
    assert not copy.parent.exists()
