"""LoRA adapters: those given at the start, and those of the network volume, loaded when named.

vLLM reads the volume's adapters from copies, one for each version of their files. It reads the
files of an adapter again, in the middle of a step, after it has made room for others: if they were
gone or broken by then, the engine would die. And it keys its prefix cache by an adapter's name and
path.
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
    adapter_names,
    adapter_version,
    base_shapes,
    check_adapter,
)
from worker.engine.locations import find
from worker.engine.protocols import Client, LoRARequest, Models
from worker.engine.translation import accepted, translated
from worker.errors import EngineDead, InvalidInput, RefusedByEngine
from worker.job import RawJob

log = logging.getLogger(__name__)

# How long a copy is kept after the last request that uses it: by then the engine has also dropped
# the requests that were cancelled.
GRACE_S = 60.0

# Directories of copies have this prefix, then the id of the process that made them.
COPIES = "worker-adapters-"


class _VolumeRequest(find("LoRARequest"), weakref=True):  # type: ignore[misc,call-arg]  # Any
    """A ``LoRARequest`` of the volume: weakly referenced, to learn when it is no longer in use."""


class Adapters:
    """All adapters of one client. Use on the engine's loop.

    Args:
        volume: its ``adapters`` directory, if there is one, has a directory for each adapter, as
            PEFT writes it.
        client: vLLM's.
        state: that of vLLM's server, which lists what it serves.
    """

    def __init__(self, volume: Path, client: Client, state: Any) -> None:
        self._root = volume / "adapters"
        self._client = client
        self._models: Models = state.openai_serving_models
        # By name: the version that was loaded last, or the reason why it was not.
        self._known: dict[str, tuple[Version, str | None]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unused: deque[tuple[float, Path]] = deque()
        self._base: Shapes | None = None
        generates = client.model_config.runner_type == "generate"
        if generates and not self.enabled and (names := adapter_names(self._root)):
            log.warning("to serve the adapters %s, set ENABLE_LORA=1", ", ".join(names))

    @property
    def enabled(self) -> bool:
        return self._client.vllm_config.lora_config is not None

    async def names_on_volume(self) -> list[str]:
        """Return the names of the volume's adapters that have all their files, sorted."""
        return await asyncio.to_thread(adapter_names, self._root) if self.enabled else []

    async def of(self, job: RawJob) -> LoRARequest | None:
        """Return the adapter that a job names; None for the model itself.

        Raises:
            WorkerError: there is no such adapter, it can't be loaded, or the job names two.
        """
        names = {name for name in (job.model, job.lora) if name is not None}
        names -= {name for name in names if name == job.model and self._models.is_base_model(name)}
        if len(names) > 1:
            raise InvalidInput("model and lora name two adapters", param="lora")
        for name in names:
            return await self.get(name, "model" if name == job.model else "lora")
        return None

    async def get(self, name: str, param: str = "lora") -> LoRARequest:
        """Return the adapter of a name, loaded as the volume has it now.

        Args:
            name: the adapter's.
            param: where the caller named it, for the error.

        Raises:
            WorkerError: there is no such adapter, or it can't be loaded.
        """
        with translated(self._client):
            await self._follow_volume(name)
            if (loaded := self._models.lora_requests.get(name)) is not None:
                return loaded
            # vLLM keeps a lock for every name that it is asked to resolve.
            resolvable = bool(self._models.lora_resolvers)
            resolved = await self._models.resolve_lora(name) if resolvable else None
        code = getattr(getattr(resolved, "error", None), "code", None)
        if resolved is None or code == HTTPStatus.NOT_FOUND:
            bases = [base.name for base in self._models.base_model_paths]
            served = ", ".join([*bases, *self._models.lora_requests])
            message = f"There is no model or adapter {name!r}; this worker serves {served}."
            raise RefusedByEngine(message, status=HTTPStatus.NOT_FOUND, param=param)
        request: LoRARequest = accepted(resolved)
        return request

    async def load(self, request: LoRARequest) -> LoRARequest:
        """Load a script's adapter under its name, and return vLLM's own request for it.

        The script's own request can't be used: an adapter that can't be loaded would kill the
        engine, and an id that vLLM has given to another adapter would answer as that one.

        Raises:
            WorkerError: it can't be loaded.
        """
        name, path = request.lora_name, request.lora_path
        known = self._models.lora_requests.get(name)
        if known is None or known.lora_path != path:
            loading = find("LoadLoRAAdapterRequest")(lora_name=name, lora_path=path)
            with translated(self._client):
                accepted(await self._models.load_lora_adapter(loading))
        return self._models.lora_requests[name]

    async def unload(self, name: str) -> None:
        """Unload an adapter; one of the volume is loaded again when it is named again.

        Raises:
            WorkerError: no adapter of that name is loaded, or it belongs to the endpoint.
        """
        served = self._models.lora_requests.get(name)
        if served is not None and not isinstance(served, _VolumeRequest):
            message = f"The adapter {name!r} belongs to the endpoint (LORA_MODULES) and stays."
            raise RefusedByEngine(message, status=HTTPStatus.BAD_REQUEST, param="lora_name")
        if served is None:
            message = f"There is no adapter {name!r} loaded."
            raise RefusedByEngine(message, status=HTTPStatus.NOT_FOUND, param="lora_name")
        async with self._locks[name]:
            self._known.pop(name, None)
            with translated(self._client):
                await self._serve(name, None)

    async def _follow_volume(self, name: str) -> None:
        """Load, replace or drop the volume's adapter of a name, if its files have changed.

        Nothing happens if the name is the model's, or that of an adapter given at the start.

        Raises:
            RefusedByEngine: the adapter is broken, or made for another model.
        """
        served = self._models.lora_requests.get(name)
        given_at_start = served is not None and not isinstance(served, _VolumeRequest)
        if not self.enabled or given_at_start or self._models.is_base_model(name):
            return
        # Callers may send any name: a lock is made only for adapters that are, or were, on the
        # volume.
        if await self._version_on_volume(name) != self._known_version(name):
            async with self._locks[name]:
                version = await self._version_on_volume(name)
                if version != self._known_version(name):
                    await self._refresh(name, version)
        _, reason = self._known.get(name, (None, None))
        if reason is not None:
            message = f"The adapter {name!r} can't be loaded: {reason}"
            raise RefusedByEngine(message, status=HTTPStatus.BAD_REQUEST, param="model")

    def _known_version(self, name: str) -> Version | None:
        return self._known[name][0] if name in self._known else None

    async def _version_on_volume(self, name: str) -> Version | None:
        try:
            return await asyncio.to_thread(adapter_version, self._root, name)
        except OSError as error:
            # Loaded adapters can be used without the volume.
            log.warning("the volume's adapters can't be read: %s", error)
            return self._known_version(name)

    async def _refresh(self, name: str, version: Version | None) -> None:
        request, reason = None, None
        try:
            if version is not None:
                request = await self._load_copy(name)
        except BrokenAdapter as broken:
            reason = str(broken)
            log.warning("the adapter %s can't be loaded: %s", name, reason)
        except OSError as error:
            log.warning("the adapter %s can't be copied: %s", name, error)
            message = f"The adapter {name!r} could not be read from the volume. Send it again."
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise RefusedByEngine(message, status=status, param="model") from error
        self._known.pop(name, None)
        if version is not None:
            self._known[name] = version, reason
        await self._serve(name, request)

    async def _load_copy(self, name: str) -> _VolumeRequest:
        self._remove_unused()
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._copies))
        request = _VolumeRequest(name, self._models.lora_id_counter.inc(1), str(path))
        unused = self._unused
        weakref.finalize(request, lambda: unused.append((time.monotonic(), path)))
        await asyncio.to_thread(self._copy, name, path)
        try:
            with translated(self._client):
                await self._client.add_lora(request)
        except EngineDead:
            raise
        except Exception as error:
            # vLLM raises a plain Exception for whatever went wrong in its core.
            message = str(error).removeprefix("Call to add_lora method failed: ")
            raise BrokenAdapter(message.replace(str(path), name) or "vLLM refuses it") from error
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
        check_adapter(path, config.lora_config, self._base)

    @cached_property
    def _copies(self) -> Path:
        """The directory of all copies: removed with this object, or by a later process."""
        _remove_copies_of_ended_processes()
        path = Path(tempfile.mkdtemp(prefix=f"{COPIES}{os.getpid()}-"))
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path

    async def _serve(self, name: str, request: _VolumeRequest | None) -> None:
        """Replace the request that is served under a name, and unload the old one.

        Running requests keep the old one: the engine loads it again, from its copy.
        """
        before = self._models.lora_requests.pop(name, None)
        if request is not None:
            self._models.lora_requests[name] = request
        if before is not None:
            await self._client.remove_lora(before.lora_int_id)

    def _remove_unused(self) -> None:
        while self._unused and time.monotonic() - self._unused[0][0] > GRACE_S:
            shutil.rmtree(self._unused.popleft()[1], ignore_errors=True)


def _remove_copies_of_ended_processes() -> None:
    """Remove what workers have left behind: they end without tidying up."""
    for copies in Path(tempfile.gettempdir()).glob(f"{COPIES}*"):
        process = copies.name.removeprefix(COPIES).split("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(copies, ignore_errors=True)
