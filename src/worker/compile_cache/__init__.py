"""Keeps compiled code on the volume, for the workers that start later.

vLLM, Triton and Inductor write to the container's own disk, which is fast and has no other writer.
Before the engine starts, an archive is unpacked there; once the worker is healthy, what was missing
on the volume is published. Only this package knows the layout on the volume.
"""

import contextlib
import gzip
import json
import logging
import os
import shutil
import subprocess
import tarfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from worker.children import Child, Ending, script
from worker.compile_cache import publishing
from worker.settings.environment import export, is_set, process_environ

log = logging.getLogger("worker")

# Directory in BASE_PATH.
SHARED = "compile-cache"
# Equal on every worker, because compiled code contains the paths of its sources.
LOCAL = "~/.cache/worker-compiled"

# Variables for the places of compiled code, and the directories in LOCAL.
VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
STARTUP_PLAN = "VLLM_ENABLE_STARTUP_PLAN"

# What vLLM knows about a model's class. It takes eight seconds to find out, in another process.
_MODELS = ("vllm/modelinfos",)
_GRAPHS = "vllm/torch_compile_cache"
# Only what depends on the key alone, not for example on which GPUs of the machine are connected.
_COMPILED = (
    _GRAPHS,
    "vllm/deep_gemm",
    "vllm/flashinfer_autotune_cache",
    "triton",
    "inductor",
)
_PLAN = ("vllm/startup_plan",)
# Of a plan: the free memory of the GPU when it was made. vLLM follows it only where there is as
# much, to the byte, and that differs by megabytes from start to start. With so much less vLLM still
# follows it: before, it has made sure that its share of the GPU is free, which is all it takes.
_BASELINE, EASED_BYTES = "free_memory_baseline", 256 << 20

# Exceptions for an archive that is damaged or cut off. An OSError may be temporary.
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)
# Refuses names that lead out of the folder; Python before 3.11.4 can't, and trusts the volume.
_WITHIN: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def prepare(base: Path) -> "CompileCache | None":
    """Set where code is compiled to, before vLLM is imported; ``base`` is the volume.

    Returns None if nothing is kept: there is no volume, or the operator set other directories.
    """
    if not base.is_dir():
        return None
    try:
        local = Path(LOCAL).expanduser()
        local.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        log.warning("compile cache: none, because there is no place for it here: %s", error)
        return None
    places = {name: str(local / folder) for name, folder in VARIABLES.items()}
    environ = process_environ()
    # A child of a worker inherits the values that the worker exported.
    own = [name for name in places if is_set(name) and environ[name] != places[name]]
    if own:
        log.info("compile cache: not kept on the volume, because %s is set", ", ".join(own))
        return None
    export(places)
    return CompileCache(base / SHARED, local)


class CompileCache:
    """The compile cache of one start: existing archives are unpacked, missing ones published."""

    def __init__(self, shared: Path, local: Path) -> None:
        self.shared = shared
        self.local = local
        self._missing: list[tuple[str, tuple[str, ...]]] = []
        self._unpacked: frozenset[tuple[str, int, int]] | None = None

    def restore_models(self, key: str) -> bool:
        """Unpack what vLLM knows about models, before it makes their configurations.

        The key is that of the models and the vLLM. Returns whether there was an archive.
        """
        return self._restore(f"{key}.models", _MODELS)

    def restore(self, key: str) -> bool:
        """Unpack compiled code, after the configuration is made and before the engine starts.

        Only a start that does not compile may plan its memory: the memory that compiling takes
        would be missing in the plan, and so in the KV cache of every later start. The key is that
        of everything that the code depends on. Returns whether there was an archive.
        """
        if not self._restore(key, _COMPILED):
            return False
        self._unpacked = self._graphs()
        # A plan in this container may be from a start that compiled and then died.
        self._remove(_PLAN)
        self._restore(f"{key}.plan", _PLAN)
        export({STARTUP_PLAN: "1"})
        return True

    def publish(self) -> threading.Thread:
        """Publish what was missing, in a thread; to be called once the worker is healthy."""
        if self._graphs() != self._unpacked:
            # This start compiled something: its plan is useless to others.
            self._missing = [item for item in self._missing if item[1] != _PLAN]
            self._remove(_PLAN)
        self._ease_plans()
        thread = threading.Thread(target=self._publish, name="compile-cache", daemon=True)
        thread.start()
        return thread

    def _publish(self) -> None:
        for name, parts in self._missing:
            command = script(publishing.__file__, self._archive(name), self.local, *parts)
            # It removes what it has not finished.
            with Child(
                command, Ending.ASKED, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as publisher:
                said, errors = publisher.communicate()
            level = logging.WARNING if publisher.returncode else logging.INFO
            if message := said or errors:
                log.log(level, "compile cache: %s: %s", name, message.decode(errors="replace"))

    def _restore(self, name: str, parts: tuple[str, ...]) -> bool:
        """Unpack an archive; note it as missing if it doesn't exist or is damaged."""
        archive = self._archive(name)
        begun = time.monotonic()
        try:
            size = _unpack(archive, self.local)
        except FileNotFoundError:
            self._missing.append((name, parts))
            return False
        except (*_DAMAGED, OSError) as error:
            log.warning("compile cache: %s can't be unpacked: %s", archive, error)
            self._remove(parts)
            if isinstance(error, _DAMAGED):
                self._missing.append((name, parts))
                # It would keep a whole one from being published.
                with contextlib.suppress(OSError):
                    archive.unlink()
            return False
        seconds = time.monotonic() - begun
        log.info("compile cache: %s: unpacked, %.1f MB in %.1f s", name, size / 1e6, seconds)
        return True

    def _ease_plans(self) -> None:
        """Let the plans that this start has made hold with somewhat less memory, too."""
        if all(parts != _PLAN for _, parts in self._missing):
            return
        for path in [file for part in _PLAN for file in (self.local / part).glob("*.json")]:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                plan = json.loads(path.read_bytes())
                plan[_BASELINE] = max(0, plan[_BASELINE] - EASED_BYTES)
                path.write_text(json.dumps(plan))

    def _remove(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            shutil.rmtree(self.local / part, ignore_errors=True)

    def _archive(self, name: str) -> Path:
        return self.shared / f"{name}{publishing.SUFFIX}"

    def _graphs(self) -> frozenset[tuple[str, int, int]]:
        """Return name, size and time of vLLM's graphs, which change if it compiles them again."""
        paths = (self.local / _GRAPHS).rglob("*")
        # Inductor's own directory grows also when no graph is compiled.
        kept = [path for path in paths if path.is_file() and "inductor_cache" not in path.parts]
        stats = [(str(path), path.stat()) for path in kept]
        return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _unpack(archive: Path, folder: Path) -> int:
    """Unpack an archive and return its size in bytes."""
    size = archive.stat().st_size
    with gzip.open(archive) as opened, tarfile.open(fileobj=opened, mode="r|") as packed:
        packed.extractall(folder, **_WITHIN)
        # The checksum is at the end, after the last member.
        while opened.read(2**20):
            pass
    # Marks it as used. The volume may be read-only.
    with contextlib.suppress(OSError):
        os.utime(archive)
    return size
