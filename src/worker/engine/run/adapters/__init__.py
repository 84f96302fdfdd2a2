"""LoRA adapters: those given at the start, and those of the network volume, loaded when named.

vLLM reads the volume's adapters from copies, one for each version of their files. It reads the
files of an adapter again, in the middle of a step, after it has made room for others: if they were
gone or broken by then, the engine would die. And it keys its prefix cache by an adapter's name and
path.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from vllm.lora.request import LoRARequest as VllmLoRARequest

from worker.engine.run.adapters.copies import Copies, fill
from worker.engine.run.adapters.files import AdapterChecks, BrokenAdapter, Look
from worker.engine.seam.locations import find
from worker.engine.seam.protocols import Client, LoRARequest, Models
from worker.engine.seam.translation import accepted, translated
from worker.errors import EngineDead, InvalidInput, RefusedByEngine
from worker.job import RawJob
from worker.volume.adapters import Version, adapter_names, adapter_version, directory

log = logging.getLogger(__name__)


class _VolumeRequest(VllmLoRARequest, weakref=True):  # type: ignore[misc,call-arg]  # Any
    """A ``LoRARequest`` of the volume: weakly referenced, to learn when it is no longer in use."""


class Adapters:
    """All adapters of one client. Use on the engine's loop.

    The volume's ``adapters`` directory, if there is one, has a directory for each adapter, as PEFT
    writes it. ``copies`` of them bound how many are loaded. ``state`` is that of vLLM's server,
    which lists what it serves.
    """

    def __init__(
        self, volume: Path, client: Client, state: Any, copies: Copies | None = None
    ) -> None:
        self._root = directory(volume)
        self._client = client
        self._models: Models = state.openai_serving_models
        self._copies = copies or Copies()
        # By name: the version that was loaded last, or the reason why it was not. The one that was
        # named last is the last.
        self._known: dict[str, Look] = {}
        # Those that are held, or waited for.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.checks = AdapterChecks(client.vllm_config)
        generates = client.model_config.runner_type == "generate"
        if generates and not self.enabled and (names := adapter_names(self._root)):
            log.warning("to serve the adapters %s, set ENABLE_LORA=1", ", ".join(names))

    @property
    def enabled(self) -> bool:
        return self._client.vllm_config.lora_config is not None

    async def on_volume(self) -> dict[str, str | None]:
        """Return the volume's adapters that have all their files: see ``Base``."""
        if not self.enabled:
            return {}
        return await asyncio.to_thread(self.checks.reasons, self._root, self._known.copy())

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

        ``param`` is where the caller named it, for the error.

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
        if resolved is None or code == 404:
            bases = [base.name for base in self._models.base_model_paths]
            served = ", ".join([*bases, *self._models.lora_requests])
            message = f"There is no model or adapter {name!r}; this worker serves {served}."
            raise RefusedByEngine(message, status=404, param=param)
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
            raise RefusedByEngine(message, status=400, param="lora_name")
        if served is None:
            message = f"There is no adapter {name!r} loaded."
            raise RefusedByEngine(message, status=404, param="lora_name")
        async with self._lock(name):
            with translated(self._client):
                await self._forget(name)

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
        if await self._version_on_volume(name) != self._known_version(name):
            async with self._lock(name):
                version = await self._version_on_volume(name)
                if version != self._known_version(name):
                    await self._refresh(name, version)
        if name in self._known:
            self._known[name] = self._known.pop(name)
        _, reason = self._known.get(name, (None, None))
        if reason is not None:
            message = f"The adapter {name!r} can't be loaded: {reason}"
            raise RefusedByEngine(message, status=400, param="model")

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

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
                request = await self._load_copy(name, version)
        except BrokenAdapter as broken:
            reason = str(broken)
            log.warning("the adapter %s can't be loaded: %s", name, reason)
        except OSError as error:
            log.warning("the adapter %s can't be copied: %s", name, error)
            message = f"The adapter {name!r} could not be read from the volume. Send it again."
            raise RefusedByEngine(message, status=503, param="model") from error
        self._known.pop(name, None)
        if version is not None:
            self._known[name] = version, reason
        await self._serve(name, request)

    async def _load_copy(self, name: str, version: Version) -> _VolumeRequest:
        size = sum(size for _, size, _ in filter(None, version))
        await self._make_room(name, size)
        path = self._copies.begin(name, size)
        request = _VolumeRequest(name, self._models.lora_id_counter.inc(1), str(path))
        self._copies.remove_after(request, path)
        await asyncio.to_thread(fill, path, self._root, name)
        await asyncio.to_thread(self.checks.check, path)
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

    async def _make_room(self, name: str, size: int) -> None:
        """Give up the adapters that nobody has named for longest, until one more may be loaded.

        Raises:
            BrokenAdapter: it is too large.
            RefusedByEngine: too many are on their way out.
        """
        most = self._copies.size
        if size > most:
            raise BrokenAdapter(f"it has {size:,} bytes, and this worker has room for {most:,}")
        while not self._copies.serve_also(size):
            served = (known for known in self._known if known in self._models.lora_requests)
            oldest = next((known for known in served if known != name), None)
            if oldest is None:
                break  # the room is taken by others that are being loaded, or by this one before
            log.info("the adapter %s makes room for %s", oldest, name)
            await self._forget(oldest)
        if not self._copies.hold_also(size):
            message = "Too many adapters are in use on this worker. Send the request again."
            raise RefusedByEngine(message, status=503, param="model")

    async def _forget(self, name: str) -> None:
        """Unload an adapter; it is loaded again when it is named again."""
        self._known.pop(name, None)
        await self._serve(name, None)

    async def _serve(self, name: str, request: _VolumeRequest | None) -> None:
        """Replace the request that is served under a name, and unload the old one.

        Running requests keep the old one: the engine loads it again, from its copy.
        """
        before = self._models.lora_requests.pop(name, None)
        if request is not None:
            self._models.lora_requests[name] = request
        if before is not None:
            self._copies.retire(Path(before.lora_path))
            # A core that is gone has nothing to unload.
            if not self._client.errored:
                await self._client.remove_lora(before.lora_int_id)
