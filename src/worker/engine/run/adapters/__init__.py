"""LoRA adapters: configured adapters, and adapters on the network volume, loaded on demand.

``Adapters`` loads the current version of the adapter that a request names, and unloads the least
recently requested ones to make space. ``files`` checks an adapter's files, also before a request
names it.

vLLM loads an adapter of the volume from a local copy (``AdapterCopies``); each version of its files
has its own copy. vLLM may read the files again in the middle of a step, after it has evicted the
adapter for others: if the files were missing or broken by then, the engine would die. And vLLM's
prefix cache is keyed by an adapter's name and path, so a new version at the same path would get the
cached values of the previous version.
"""

import asyncio
import logging
import math
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import psutil
from vllm.lora.request import LoRARequest as VllmLoRARequest

from worker.engine.run.adapters.files import AdapterChecker, BrokenAdapter, CheckResult
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import Client, LoRARequest, Models
from worker.engine.seam.translation import raise_for_error_response, translate_errors
from worker.errors import EngineDead, InvalidInput, RefusedByEngine
from worker.job import RawJob
from worker.validation import unknown_model_advice
from worker.volume.adapters import (
    FILES,
    AdapterVersion,
    adapter_names,
    adapter_version,
    adapters_directory,
    explain_missing_adapter,
)
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation

log = logging.getLogger(__name__)

# Seconds to retain a copy after the last request that uses it. By then the engine has also dropped
# the requests that were cancelled.
GRACE_PERIOD_S = 60.0

# Prefix of the directories with copies. The id of the process that created the directory follows.
DIRECTORY_PREFIX = "worker-adapters-"


class _VolumeLoRARequest(VllmLoRARequest, weakref=True):  # type: ignore[misc,call-arg]  # Any
    """A ``LoRARequest`` for an adapter of the volume; weak references to it show its last use."""


class AdapterCopies:
    """The local copies of one engine's adapters. Not thread-safe.

    A copy is retired when its adapter is no longer served. A retired copy expires when no request
    has used it for ``GRACE_PERIOD_S``, and is removed before the next copy is made. Served and
    retired copies together may use twice the limits for served adapters.

    The default of ``max_bytes`` is a quarter of the free disk space.
    """

    def __init__(self, max_adapters: int = 1_000, max_bytes: int | None = None) -> None:
        self._max_adapters = max_adapters
        self._max_bytes = max_bytes
        self._sizes: dict[Path, int] = {}
        # Retired copies, with the time of their last use; infinite while requests may use them.
        self._retired: dict[Path, float] = {}

    @cached_property
    def max_served_bytes(self) -> int:
        if self._max_bytes is not None:
            return self._max_bytes
        return shutil.disk_usage(tempfile.gettempdir()).free // 4

    def can_serve(self, size: int) -> bool:
        """Return whether an adapter of ``size`` bytes can be served in addition to the others."""
        served = [copy_size for path, copy_size in self._sizes.items() if path not in self._retired]
        return self._fits_limits([*served, size])

    def make_space(self, size: int) -> bool:
        """Remove expired copies; return whether there is space for a copy of ``size`` bytes."""
        for path, unused_since in [*self._retired.items()]:
            if time.monotonic() - unused_since > GRACE_PERIOD_S:
                shutil.rmtree(path, ignore_errors=True)
                del self._sizes[path], self._retired[path]
        return self._fits_limits([*self._sizes.values(), size], factor=2)

    def _fits_limits(self, sizes: Collection[int], factor: int = 1) -> bool:
        return (
            len(sizes) <= factor * self._max_adapters
            and sum(sizes) <= factor * self.max_served_bytes
        )

    def create_directory(self, name: str, size: int) -> Path:
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._copies_directory))
        self._sizes[path] = size
        return path

    def retire(self, path: Path) -> None:
        """Mark a copy as retired: its adapter is no longer served; requests may still use it."""
        self._retired[path] = math.inf

    def expire_after_use(self, request: object, path: Path) -> None:
        """Let a copy expire when its ``LoRARequest``, which each use references, is deleted."""
        retired = self._retired

        def mark_unused() -> None:
            retired[path] = time.monotonic()

        weakref.finalize(request, mark_unused)

    @cached_property
    def _copies_directory(self) -> Path:
        """The directory of all copies; removed with this object, or by a later worker process."""
        remove_stale_copies()
        path = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{os.getpid()}-"))
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path


def copy_adapter(path: Path, root: Path, name: str) -> None:
    resolved_root, folder = root.resolve(), (root / name).resolve()
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise BrokenAdapter(f"it has no {' and no '.join(missing)}")
    for file in FILES:
        with (folder / file).open("rb") as source, (path / file).open("wb") as target:
            # Resolve the open file: a link may have changed since the adapter's version was read.
            opened = Path(f"/proc/self/fd/{source.fileno()}").resolve()
            if not opened.is_relative_to(resolved_root):
                raise BrokenAdapter(f"its {file} is not in the directory of the adapters")
            shutil.copyfileobj(source, target, 1 << 20)


def remove_stale_copies() -> None:
    """Remove the copies of worker processes that exited without removing them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        pid = directory.name.removeprefix(DIRECTORY_PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(directory, ignore_errors=True)


class Adapters:
    """Loads, lists and unloads the LoRA adapters of one engine. Use on the engine's loop.

    The volume's ``adapters`` directory, if it exists, has a directory in PEFT's format for each
    adapter. ``state`` is the state of vLLM's server, which lists the served models.
    """

    def __init__(
        self,
        volume: Path,
        client: Client,
        state: Any,
        copies: AdapterCopies | None = None,
        location: VolumeLocation = UNKNOWN_LOCATION,
    ) -> None:
        self._root = adapters_directory(volume)
        self._client = client
        self._models: Models = state.openai_serving_models
        self._copies = copies or AdapterCopies()
        # The version of each requested adapter that was last loaded or refused, and the reason for
        # the refusal (None if it was loaded), by name. The most recently requested adapter is last.
        self._results: dict[str, CheckResult] = {}
        # One lock for each adapter that is being loaded or unloaded, by name.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.checker = AdapterChecker(client.vllm_config)
        # Without LoRA, no worker of the endpoint serves adapters, whatever their volume is.
        self._location = location if self.is_enabled else UNKNOWN_LOCATION
        can_generate = client.model_config.runner_type == "generate"
        if can_generate and not self.is_enabled and (names := adapter_names(self._root)):
            log.warning("to serve the adapters %s, set ENABLE_LORA=1", ", ".join(names))

    @property
    def is_enabled(self) -> bool:
        return self._client.vllm_config.lora_config is not None

    async def list_complete_adapters(self) -> dict[str, str | None]:
        """Return the volume's adapters with all their files, each with its known problem or None.

        The result is empty if LoRA is disabled.
        """
        if not self.is_enabled:
            return {}
        return await asyncio.to_thread(
            self.checker.find_problems_by_adapter, self._root, self._results.copy()
        )

    async def load_for_job(self, job: RawJob) -> LoRARequest | None:
        """Load and return a job's adapter; None if the job names no other model than the base."""
        names = {name for name in (job.model, job.lora) if name is not None}
        names -= {name for name in names if name == job.model and self._models.is_base_model(name)}
        if len(names) > 1:
            raise InvalidInput("model and lora name two adapters", param="lora")
        for name in names:
            return await self.get_or_load(name, "model" if name == job.model else "lora")
        return None

    async def get_or_load(self, name: str, param: str = "lora") -> LoRARequest:
        """Return an adapter by its name, after loading it or its current version if necessary.

        If the name is neither on the volume nor configured, vLLM's LoRA resolvers look for it.
        ``param`` is the parameter of the request that names the adapter, for the error.
        """
        with translate_errors(self._client):
            await self._sync_adapter(name)
            if (loaded := self._models.lora_requests.get(name)) is not None:
                return loaded
            # Without resolvers, don't call vLLM, which would store a lock for every unknown name.
            can_resolve = bool(self._models.lora_resolvers)
            resolution = await self._models.resolve_lora(name) if can_resolve else None
        status = getattr(getattr(resolution, "error", None), "code", None)
        if resolution is None or status == 404:
            self._location.check_name("adapter", name, param)
            bases = [base.name for base in self._models.base_model_paths]
            on_volume = await self.list_complete_adapters()
            usable = [known for known, problem in on_volume.items() if problem is None]
            advice = unknown_model_advice(name, [*bases, *self._models.lora_requests, *usable])
            message = f"There is no model or adapter {name!r}; {advice}"
            message += self._location.adapters_note
            if self.is_enabled:
                message += await asyncio.to_thread(explain_missing_adapter, self._root, name)
            raise RefusedByEngine(message, status=404, param=param)
        request: LoRARequest = raise_for_error_response(resolution)
        return request

    async def load_for_script(self, request: LoRARequest) -> LoRARequest:
        """Load the adapter of a script's request unless it is loaded; return vLLM's own request.

        The script's own request can't be used: an adapter that can't be loaded would kill the
        engine, and if vLLM has assigned its id to another adapter, that adapter would answer.
        """
        name, path = request.lora_name, request.lora_path
        known = self._models.lora_requests.get(name)
        if known is None or known.lora_path != path:
            loading = import_from_vllm("LoadLoRAAdapterRequest")(lora_name=name, lora_path=path)
            with translate_errors(self._client):
                raise_for_error_response(await self._models.load_lora_adapter(loading))
        return self._models.lora_requests[name]

    async def unload(self, name: str) -> None:
        """Unload an adapter of the volume; the next request that names it loads it again."""
        served = self._models.lora_requests.get(name)
        if served is not None and not isinstance(served, _VolumeLoRARequest):
            message = f"The adapter {name!r} of the endpoint (LORA_MODULES) can't be unloaded."
            raise RefusedByEngine(message, status=400, param="lora_name")
        if served is None:
            self._location.check_name("adapter", name, "lora_name")
            message = f"There is no adapter {name!r} loaded."
            raise RefusedByEngine(message, status=404, param="lora_name")
        async with self._lock_for_name(name):
            with translate_errors(self._client):
                await self._unload_and_forget(name)

    async def _sync_adapter(self, name: str) -> None:
        """Load, replace or unload the volume's adapter with this name if its files have changed.

        Does nothing without LoRA, or for the name of the base model or of another loaded adapter.
        """
        served = self._models.lora_requests.get(name)
        is_configured = served is not None and not isinstance(served, _VolumeLoRARequest)
        if not self.is_enabled or is_configured or self._models.is_base_model(name):
            return
        if await self._version_on_volume(name) != self._last_tried_version(name):
            async with self._lock_for_name(name):
                version = await self._version_on_volume(name)
                if version != self._last_tried_version(name):
                    await self._serve_version(name, version)
        if name in self._results:
            self._results[name] = self._results.pop(name)
        _, reason = self._results.get(name, (None, None))
        if reason is not None:
            message = f"The adapter {name!r} can't be loaded: {reason}"
            raise RefusedByEngine(message, status=400, param="model")

    def _lock_for_name(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _last_tried_version(self, name: str) -> AdapterVersion | None:
        return self._results[name][0] if name in self._results else None

    async def _version_on_volume(self, name: str) -> AdapterVersion | None:
        try:
            return await asyncio.to_thread(adapter_version, self._root, name)
        except OSError as error:
            # Loaded adapters can be used without the volume, so assume that nothing has changed.
            log.warning("the volume's adapters can't be read: %s", error)
            return self._last_tried_version(name)

    async def _serve_version(self, name: str, version: AdapterVersion | None) -> None:
        """Serve an adapter's version, or none if it is broken or None; store the check's result."""
        request, reason = None, None
        try:
            if version is not None:
                request = await self._copy_and_load(name, version)
        except BrokenAdapter as broken:
            reason = str(broken)
            log.warning("the adapter %s can't be loaded: %s", name, reason)
        except OSError as error:
            log.warning("the adapter %s can't be copied: %s", name, error)
            message = f"The adapter {name!r} could not be read from the volume. Send it again."
            raise RefusedByEngine(message, status=503, param="model") from error
        self._results.pop(name, None)
        if version is not None:
            self._results[name] = version, reason
        await self._replace_served_adapter(name, request)

    async def _copy_and_load(self, name: str, version: AdapterVersion) -> _VolumeLoRARequest:
        limit = self._copies.max_served_bytes
        size = sum(size for _, size, _ in filter(None, version))
        if size > limit:
            raise BrokenAdapter(f"it has {size:,} bytes, and this worker has room for {limit:,}")
        while not self._copies.can_serve(size):
            served = (known for known in self._results if known in self._models.lora_requests)
            oldest = next((known for known in served if known != name), None)
            if oldest is None:
                break  # adapters being loaded, or this adapter's former version, use the space
            log.info("the adapter %s is unloaded to free memory for %s", oldest, name)
            await self._unload_and_forget(oldest)
        if not self._copies.make_space(size):
            message = "Too many adapters are in use on this worker. Send the request again."
            raise RefusedByEngine(message, status=503, param="model")

        path = self._copies.create_directory(name, size)
        request = _VolumeLoRARequest(name, self._models.lora_id_counter.inc(1), str(path))
        self._copies.expire_after_use(request, path)
        await asyncio.to_thread(copy_adapter, path, self._root, name)
        await asyncio.to_thread(self.checker.check_files, path)
        try:
            with translate_errors(self._client):
                await self._client.add_lora(request)
        except EngineDead:
            raise
        except Exception as error:
            # vLLM raises a plain Exception for any error in its core.
            message = str(error).removeprefix("Call to add_lora method failed: ")
            raise BrokenAdapter(message.replace(str(path), name) or "vLLM refuses it") from error
        return request

    async def _unload_and_forget(self, name: str) -> None:
        self._results.pop(name, None)
        await self._replace_served_adapter(name, None)

    async def _replace_served_adapter(self, name: str, request: _VolumeLoRARequest | None) -> None:
        """Serve another ``LoRARequest``, or none, under a name, and unload the previous one.

        Running requests keep the previous adapter: the engine loads it again from its copy.
        """
        previous = self._models.lora_requests.pop(name, None)
        if request is not None:
            self._models.lora_requests[name] = request
        if previous is not None:
            self._copies.retire(Path(previous.lora_path))
            # A dead core has nothing to unload.
            if not self._client.errored:
                await self._client.remove_lora(previous.lora_int_id)
