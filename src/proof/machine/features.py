"""Steps about loads, adapters and an embedder, on a side that has started with them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp

from proof.measure import http_load
from proof.measure.comparison import Round
from proof.measure.figures import Load
from proof.measure.processes import Lost
from proof.measure.sides import NAME, HttpSide

ADAPTERS = ("adapter-1", "adapter-2")
EMBEDDER = "embedder"
STREAM = "one stream"
EMBEDDING_CALLERS = 4
TEXTS = 16


async def measure_load(side: HttpSide, name: str, load: Load) -> Round:
    measured = await side.run(load)
    return Round({name: measured.figures.as_json()})


async def measure_stream(side: HttpSide, load: Load) -> Round:
    """Record the arrivals of the tokens of one stream."""
    measured = await side.run(load)
    return Round({STREAM: measured.figures.as_json()}, measured.arrivals)


async def measure_memory(side: HttpSide) -> Round:
    return Round({"memory": {"mib": side.memory_mib()}})


def adapter_options(folder: Path) -> dict[str, Any]:
    """Return the options of an engine that serves the adapters of a folder."""
    modules = [{"name": name, "path": str(folder / name)} for name in ADAPTERS]
    return {"enable_lora": True, "max_loras": len(ADAPTERS), "lora_modules": modules}


async def measure_adapters(side: HttpSide, load: Load) -> Round:
    """Run a load whose requests name the model and both adapters in turn.

    Raises:
        Lost: If an adapter does not change the model's text.
    """
    models = (NAME, *ADAPTERS)
    async with aiohttp.ClientSession() as client:
        texts = {await answer_text(client, side, model) for model in models}
    if len(texts) < len(models):
        raise Lost("an adapter does not change the model's text")
    measured = await side.run(load, models)
    return Round({"adapters": measured.figures.as_json()})


async def measure_embedder(side: HttpSide, load: Load) -> Round:
    """Run a load while other callers get embeddings, and count the embeddings."""
    counts: list[int] = []

    async def embed(client: aiohttp.ClientSession) -> None:
        body = {"model": EMBEDDER, "input": http_load.prompts(TEXTS)}
        while True:
            async with client.post(f"{side.base}/embeddings", json=body) as response:
                response.raise_for_status()
                counts.append(len((await response.json())["data"]))

    began = time.perf_counter()
    async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
        callers = [group.create_task(embed(client)) for _ in range(EMBEDDING_CALLERS)]
        measured = await side.run(load)
        for caller in callers:
            caller.cancel()
    figures = measured.figures.as_json()
    figures["embeddings_per_s"] = sum(counts) / (time.perf_counter() - began)
    return Round({"embedder": figures})


async def answer_text(client: aiohttp.ClientSession, side: HttpSide, model: str) -> str:
    """Return the greedy answer of a model or an adapter to a short prompt."""
    body = http_load.body(model, "Hi", Load(1, 1, 16, stream=False))
    async with client.post(f"{side.base}/chat/completions", json=body) as response:
        response.raise_for_status()
        return str((await response.json())["choices"][0]["message"]["content"])
