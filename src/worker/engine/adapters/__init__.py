"""LoRA adapters of the network volume: found by name and loaded while the worker runs.

vLLM is given copies. It reads an adapter's files again, in the middle of a step, when it has made
room for others meanwhile; if they were gone or broken by then, that would kill the engine. And it
takes what it has cached of a prompt for valid as long as an adapter's name and path are the same.
"""

import asyncio
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections import defaultdict, deque
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from worker.engine.adapters.files import (
    FILES,
    BrokenAdapter,
    Shapes,
    Version,
    base_shapes,
    check,
    check_given,
    look,
    names,
)
from worker.engine.locations import find
from worker.engine.translation import translated
from worker.errors import EngineDead, RefusedByEngine

__all__ = ["Adapters", "check_given"]

log = logging.getLogger(__name__)

# How long a copy outlives the last request that names it: by then the engine has also forgotten
# one that was cancelled.
GRACE_S = 60.0

# What directories of copies are called, before the process that made them.
COPIES = "worker-adapters-"


class _Request(find("LoRARequest"), weakref=True):  # type: ignore[misc,call-arg]  # Any
    """vLLM's own, but one that tells when nobody uses it any more."""


class Adapters:
    """The adapters in the volume's ``adapters``, each in a directory of its own, as PEFT writes it.

    Use on the engine's loop.

    Args:
        volume: holds the directory, or does not.
        client: vLLM's AsyncLLM.
        state: of vLLM's server, which keeps a list of what it serves.
    """

    def __init__(self, volume: Path, client: Any, state: Any) -> None:
        self._root = volume / "adapters"
        self._client = client
        self._models = state.openai_serving_models
        # By name: the version that was looked at last, and what is wrong with it, if something is.
        self._known: dict[str, tuple[Version, str | None]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unused: deque[tuple[float, Path]] = deque()
        self._base: Shapes | None = None
        generates = client.model_config.runner_type == "generate"
        if generates and not self.enabled and (found := names(self._root)):
            log.warning("to serve the adapters %s, set ENABLE_LORA=1", ", ".join(found))

    @property
    def enabled(self) -> bool:
        return self._client.vllm_config.lora_config is not None

    async def names(self) -> list[str]:
        """Return the names of the adapters on the volume that look complete."""
        return await asyncio.to_thread(names, self._root) if self.enabled else []

    async def adopt(self, name: str) -> None:
        """Have vLLM serve the volume's adapter of a name as it is now, or no more if it is gone.

        Nothing happens if the name is the model's, that of an adapter given at the start, or no
        adapter's at all.

        Raises:
            RefusedByEngine: the adapter is broken, or made for another model.
            EngineDead: nothing can be loaded any more.
        """
        served = self._models.lora_requests.get(name)
        given_at_start = served is not None and not isinstance(served, _Request)
        if not self.enabled or given_at_start or self._models.is_base_model(name):
            return
        # Callers may send any name: only those that the volume has, or had, leave a lock behind.
        if await self._found(name) != self._version(name):
            async with self._locks[name]:
                if (found := await self._found(name)) != self._version(name):
                    await self._refresh(name, found)
        _, refusal = self._known.get(name, (None, None))
        if refusal is not None:
            message = f"The adapter {name!r} can't be loaded: {refusal}"
            raise RefusedByEngine(message, status=HTTPStatus.BAD_REQUEST, param="model")

    async def unload(self, name: str) -> None:
        """Free what an adapter holds; the volume's is loaded anew when it is named again.

        Raises:
            RefusedByEngine: none of that name is loaded.
        """
        served = self._models.lora_requests.get(name)
        if served is not None and not isinstance(served, _Request):
            message = f"The adapter {name!r} belongs to the endpoint (LORA_MODULES) and stays."
            raise RefusedByEngine(message, status=HTTPStatus.BAD_REQUEST, param="lora_name")
        if served is None:
            message = f"There is no adapter {name!r} loaded."
            raise RefusedByEngine(message, status=HTTPStatus.NOT_FOUND, param="lora_name")
        async with self._locks[name]:
            self._known.pop(name, None)
            await self._serve(name, None)

    def _version(self, name: str) -> Version | None:
        return self._known[name][0] if name in self._known else None

    async def _found(self, name: str) -> Version | None:
        try:
            return await asyncio.to_thread(look, self._root, name)
        except OSError as error:
            # What is loaded can go on without the volume.
            log.warning("the volume's adapters can't be read: %s", error)
            return self._version(name)

    async def _refresh(self, name: str, found: Version | None) -> None:
        request, refusal = None, None
        try:
            if found is not None:
                request = await self._loaded(name)
        except BrokenAdapter as broken:
            refusal = str(broken)
            log.warning("the adapter %s can't be loaded: %s", name, refusal)
        except OSError as error:
            log.warning("the adapter %s can't be copied: %s", name, error)
            message = f"The adapter {name!r} could not be read from the volume. Send it again."
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise RefusedByEngine(message, status=status, param="model") from error
        self._known.pop(name, None)
        if found is not None:
            self._known[name] = found, refusal
        await self._serve(name, request)

    async def _loaded(self, name: str) -> Any:
        self._remove_unused()
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._copies))
        request = _Request(name, self._models.lora_id_counter.inc(1), str(path))
        unused = self._unused
        weakref.finalize(request, lambda: unused.append((time.monotonic(), path)))
        await asyncio.to_thread(self._copy, name, path)
        # Gathered, because what vLLM raises for whatever went wrong in its core is an Exception.
        load = self._client.add_lora(request)
        answer: Any = (await asyncio.gather(load, return_exceptions=True))[0]
        if self._client.errored:
            raise EngineDead
        if isinstance(answer, Exception):
            told = str(answer).removeprefix("Call to add_lora method failed: ")
            raise BrokenAdapter(told.replace(str(path), name) or "vLLM refuses it")
        return request

    def _copy(self, name: str, path: Path) -> None:
        config = self._client.vllm_config
        folder = (self._root / name).resolve()
        if missing := [file for file in FILES if not (folder / file).is_file()]:
            raise BrokenAdapter(f"it has no {' and no '.join(missing)}")
        for file in FILES:
            shutil.copyfile(folder / file, path / file)
        if self._base is None:
            self._base = base_shapes(config.model_config, config.load_config.download_dir)
        check(path, config.lora_config, self._base)

    @cached_property
    def _copies(self) -> Path:
        """Holds all copies; gone when this object is, or with the next process that makes some."""
        _remove_left_behind()
        path = Path(tempfile.mkdtemp(prefix=f"{COPIES}{os.getpid()}-"))
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path

    async def _serve(self, name: str, request: Any) -> None:
        """Put a request in the place of the one that is served, and free what that one holds.

        Running requests keep theirs: the engine reads it again, from its copy.
        """
        before = self._models.lora_requests.pop(name, None)
        if request is not None:
            self._models.lora_requests[name] = request
        if before is not None:
            with translated(self._client):
                await self._client.remove_lora(before.lora_int_id)

    def _remove_unused(self) -> None:
        while self._unused and time.monotonic() - self._unused[0][0] > GRACE_S:
            shutil.rmtree(self._unused.popleft()[1], ignore_errors=True)


def _remove_left_behind() -> None:
    """Remove the copies of processes that are no more: a worker ends without tidying up."""
    for left in Path(tempfile.gettempdir()).glob(f"{COPIES}*"):
        process = left.name.removeprefix(COPIES).split("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)
