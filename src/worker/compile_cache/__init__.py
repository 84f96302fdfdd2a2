"""Stores compiled code on the volume for workers that start later.

vLLM, Triton and Inductor write to the container's own disk, which is fast and has no other writer;
``set_up_compile_cache`` says where. Before the engine starts, ``CompileCache`` unpacks an archive
there. Once the worker is healthy, ``publishing``, a program of its own, packs the archives that the
volume lacks. Only this package knows the layout on the volume.
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

from worker.children import Child, StopMode, script_command
from worker.compile_cache import publishing
from worker.settings.environment import is_variable_set, process_environ, set_unset_variables

log = logging.getLogger("worker")

# Directory of the archives in BASE_PATH.
SHARED_DIRECTORY = "compile-cache"
# Directory of compiled code: the same on every worker, because the code contains its paths.
LOCAL_DIRECTORY = "~/.cache/worker-compiled"

# Environment variables for the locations of compiled code, and the directories in LOCAL_DIRECTORY.
VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
STARTUP_PLAN = "VLLM_ENABLE_STARTUP_PLAN"

# vLLM's information about a model's class. Without it, vLLM runs another process for eight seconds.
_MODEL_PARTS = ("vllm/modelinfos",)
_GRAPHS = "vllm/torch_compile_cache"
# Directories whose files depend only on the archive's key, not on which GPUs are connected.
_COMPILED_PARTS = (
    _GRAPHS,
    "vllm/deep_gemm",
    "vllm/flashinfer_autotune_cache",
    "triton",
    "inductor",
)
_PLAN = "vllm/startup_plan"
_PLAN_PARTS = (_PLAN,)
# Key in a startup plan for the GPU's free memory when the plan was made, and bytes that this worker
# subtracts from it. vLLM follows a plan only if at least as many bytes are free, and free memory
# differs by megabytes from startup to startup. A little less is enough: vLLM has already made sure
# that its share of the GPU is free, and it takes no more than that.
_FREE_MEMORY_KEY, PLAN_SLACK_BYTES = "free_memory_baseline", 256 << 20

# Exceptions for a damaged or truncated archive. Any other OSError may be temporary.
_DAMAGE_ERRORS = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)
# Rejects names that lead out of the folder. Python before 3.11.4 can't reject them: there, the
# archives on the volume are trusted.
_EXTRACT_OPTIONS: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def set_up_compile_cache(base: Path) -> "CompileCache | None":
    """Set the directories for compiled code, and return the cache; call this before importing vLLM.

    Return None if ``base``, the root of the volume, doesn't exist, if the local directory can't be
    created, or if the operator has set other directories.
    """
    if not base.is_dir():
        return None
    try:
        local = Path(LOCAL_DIRECTORY).expanduser()
        local.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        log.warning("compile cache: disabled, because its directory can't be created: %s", error)
        return None
    paths = {name: str(local / folder) for name, folder in VARIABLES.items()}
    environ = process_environ()
    # A variable with the value in ``paths`` was not set by the operator: a child of a worker
    # inherits the variables that the worker exported.
    overridden = [name for name in paths if is_variable_set(name) and environ[name] != paths[name]]
    if overridden:
        log.info("compile cache: not kept on the volume, because %s is set", ", ".join(overridden))
        return None
    set_unset_variables(paths)
    return CompileCache(base / SHARED_DIRECTORY, local)


class CompileCache:
    """The compile cache of one startup: unpacks existing archives and publishes missing ones.

    ``shared`` has the archives on the volume, ``local`` the compiled code on the container's disk.
    """

    def __init__(self, shared: Path, local: Path) -> None:
        self.shared = shared
        self.local = local
        self._missing: list[tuple[str, tuple[str, ...]]] = []
        self._unpacked: frozenset[tuple[str, int, int]] | None = None

    def restore_model_info(self, key: str) -> bool:
        """Unpack vLLM's information about models, before vLLM creates their configurations.

        The key depends on the models and the vLLM release.
        """
        return self._restore_archive(f"{key}.models", _MODEL_PARTS)

    def restore_code(self, key: str) -> bool:
        """Unpack compiled code, after the configuration is created and before the engine starts.

        Return whether an archive was unpacked. If it was, vLLM may write startup plans and follow
        them, and its plan on the volume, if any, is unpacked, too. A startup that compiles must not
        write a plan: compilation takes memory from the KV cache, and the plan would make the cache
        of every later startup as small. The key depends on everything that the code depends on.
        """
        if not self._restore_archive(key, _COMPILED_PARTS):
            return False
        self._unpacked = self._graph_versions()
        # An earlier startup in this container may have left a plan: it compiled code that was not
        # in its archive, let vLLM write a plan, and crashed before removing the plan.
        self._remove_local_parts(_PLAN_PARTS)
        self._restore_archive(f"{key}.plan", _PLAN_PARTS)
        set_unset_variables({STARTUP_PLAN: "1"})
        return True

    def start_publishing(self) -> threading.Thread:
        """Publish missing archives in the returned thread; call this once the worker is healthy."""
        if self._graph_versions() != self._unpacked:
            # Compiling took memory that this startup's plan lacks for the KV cache: don't share it.
            self._missing = [item for item in self._missing if item[1] != _PLAN_PARTS]
            self._remove_local_parts(_PLAN_PARTS)
        if any(parts == _PLAN_PARTS for _, parts in self._missing):
            # Others follow the plan with a little less free memory than there was.
            for path in (self.local / _PLAN).glob("*.json"):
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                    plan = json.loads(path.read_bytes())
                    plan[_FREE_MEMORY_KEY] = max(0, plan[_FREE_MEMORY_KEY] - PLAN_SLACK_BYTES)
                    path.write_text(json.dumps(plan))
        thread = threading.Thread(target=self._publish_archives, name="compile-cache", daemon=True)
        thread.start()
        return thread

    def _publish_archives(self) -> None:
        for name, parts in self._missing:
            archive = self._archive_path(name)
            command = script_command(publishing.__file__, archive, self.local, *parts)
            # On SIGTERM, the publisher removes its unfinished archive.
            with Child(
                command, StopMode.TERMINATE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as publisher:
                output, errors = publisher.communicate()
            level = logging.WARNING if publisher.returncode else logging.INFO
            if message := output or errors:
                log.log(level, "compile cache: %s: %s", name, message.decode(errors="replace"))

    def _restore_archive(self, name: str, parts: tuple[str, ...]) -> bool:
        archive = self._archive_path(name)
        started_at = time.monotonic()
        try:
            size = archive.stat().st_size
            with gzip.open(archive) as opened, tarfile.open(fileobj=opened, mode="r|") as packed:
                packed.extractall(self.local, **_EXTRACT_OPTIONS)
                # The checksum is at the end of the archive: reading to there detects damage.
                while opened.read(2**20):
                    pass
        except FileNotFoundError:
            self._missing.append((name, parts))
            return False
        except (*_DAMAGE_ERRORS, OSError) as error:
            log.warning("compile cache: %s can't be unpacked: %s", archive, error)
            self._remove_local_parts(parts)
            if isinstance(error, _DAMAGE_ERRORS):
                self._missing.append((name, parts))
                # The damaged archive would prevent the publication of a complete one.
                with contextlib.suppress(OSError):
                    archive.unlink()
            return False
        # Mark the archive as used. The volume may be read-only.
        with contextlib.suppress(OSError):
            os.utime(archive)
        seconds = time.monotonic() - started_at
        log.info("compile cache: %s: unpacked, %.1f MB in %.1f s", name, size / 1e6, seconds)
        return True

    def _remove_local_parts(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            shutil.rmtree(self.local / part, ignore_errors=True)

    def _archive_path(self, name: str) -> Path:
        return self.shared / f"{name}{publishing.SUFFIX}"

    def _graph_versions(self) -> frozenset[tuple[str, int, int]]:
        """Return path, size and mtime of vLLM's compiled graphs; each compilation changes them."""
        paths = (self.local / _GRAPHS).rglob("*")
        # Inductor's own directory grows even if no graph is compiled.
        graphs = [path for path in paths if path.is_file() and "inductor_cache" not in path.parts]
        stats = [(str(path), path.stat()) for path in graphs]
        return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
