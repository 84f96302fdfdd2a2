"""What was compiled for a model, kept on the volume from one worker to the next.

vLLM, Triton and Inductor write to the container's own disk: it is fast, and nobody else writes
there. Before the engine starts, an archive is unpacked into these directories; once the worker is
healthy, what was missing on the volume is published. Only this module knows how it lies there.
"""

import contextlib
import gzip
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from pathlib import Path

from worker.compile_cache import publishing
from worker.settings.environment import export, is_set, process_environ

log = logging.getLogger("worker")

# Below BASE_PATH.
SHARED = "compile-cache"
# The same on every worker, because what is compiled names the files that it was made from.
LOCAL = "~/.cache/worker-compiled"

# Where what is compiled goes, and the directory below LOCAL.
VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
STARTUP_PLAN = "VLLM_ENABLE_STARTUP_PLAN"

# What vLLM finds out about a model's class, by importing it in another process: eight seconds.
_MODELS = ("vllm/modelinfos",)
_GRAPHS = "vllm/torch_compile_cache"
# Only what depends on nothing but the key: which GPUs reach each other, for one, is the machine's.
_COMPILED = (
    _GRAPHS,
    "vllm/deep_gemm",
    "vllm/flashinfer_autotune_cache",
    "triton",
    "inductor",
)
_PLAN = ("vllm/startup_plan",)

# What reading an archive raises that is damaged or was cut off; an OSError may pass.
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


def prepared(base: Path) -> "CompileCache | None":
    """Have everything that is compiled written where it can be kept.

    Call before vLLM is imported. None, where nothing is kept: for want of a volume, or because the
    operator has directories of his own.

    Args:
        base: the volume.
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
    # What a worker has exported, its children inherit.
    own = [name for name in places if is_set(name) and environ[name] != places[name]]
    if own:
        log.info("compile cache: not kept on the volume, because %s is set", ", ".join(own))
        return None
    export(places)
    return CompileCache(base / SHARED, local)


class CompileCache:
    """The compile cache of one start: what is there is unpacked, the rest is published later."""

    def __init__(self, shared: Path, local: Path) -> None:
        self.shared = shared
        self.local = local
        self._missing: list[tuple[str, tuple[str, ...]]] = []
        self._unpacked: frozenset[tuple[str, int, int]] | None = None

    def restore_models(self, key: str) -> bool:
        """Unpack what is known of models; before vLLM makes their configuration.

        Args:
            key: names the models and what vLLM it is.
        """
        return self._restored(f"{key}.models", _MODELS)

    def restore(self, key: str) -> bool:
        """Unpack what was compiled; after the configuration is made, before the engine starts.

        Only a start that does not compile may plan its memory: what compiling takes would be
        missing in the plan, and in each later start's KV cache.

        Args:
            key: names all that what is compiled depends on.
        """
        if not self._restored(key, _COMPILED):
            return False
        self._unpacked = self._graphs()
        # One of an earlier start in this container may be of one that compiled, and then died.
        self._forget(_PLAN)
        self._restored(f"{key}.plan", _PLAN)
        export({STARTUP_PLAN: "1"})
        return True

    def publish(self) -> threading.Thread:
        """Publish what was missing, in the background; once the worker is healthy."""
        if self._graphs() != self._unpacked:
            # This start has compiled, whatever was unpacked: its plan is of no use to any other.
            self._missing = [each for each in self._missing if each[1] != _PLAN]
            self._forget(_PLAN)
        thread = threading.Thread(target=self._publish, name="compile-cache", daemon=True)
        thread.start()
        return thread

    def _publish(self) -> None:
        for name, parts in self._missing:
            words = [str(os.getpid()), str(self._archive(name)), str(self.local), *parts]
            # Without the packages, and the variables that would say where they are.
            program = [sys.executable, "-I", "-S", publishing.__file__, *words]
            done = subprocess.run(program, capture_output=True, text=True, check=False)
            level = logging.WARNING if done.returncode else logging.INFO
            if said := done.stdout or done.stderr:
                log.log(level, "compile cache: %s: %s", name, said)

    def _restored(self, name: str, parts: tuple[str, ...]) -> bool:
        """Unpack an archive; note it as missing if it is not there, or is damaged."""
        archive = self._archive(name)
        begun = time.monotonic()
        try:
            size = _unpack(archive, self.local)
        except FileNotFoundError:
            self._missing.append((name, parts))
            return False
        except (*_DAMAGED, OSError) as error:
            log.warning("compile cache: %s can't be unpacked: %s", archive, error)
            self._forget(parts)
            if isinstance(error, _DAMAGED):
                self._missing.append((name, parts))
                # Else nobody could ever publish a whole one.
                with contextlib.suppress(OSError):
                    archive.unlink()
            return False
        seconds = time.monotonic() - begun
        log.info("compile cache: %s: unpacked, %.1f MB in %.1f s", name, size / 1e6, seconds)
        return True

    def _forget(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            shutil.rmtree(self.local / part, ignore_errors=True)

    def _archive(self, name: str) -> Path:
        return self.shared / f"{name}{publishing.SUFFIX}"

    def _graphs(self) -> frozenset[tuple[str, int, int]]:
        """Tell apart the graphs that vLLM keeps: it writes one again when it compiles it again."""
        paths = (self.local / _GRAPHS).rglob("*")
        # Inductor's part of them grows without a graph being compiled.
        kept = [path for path in paths if path.is_file() and "inductor_cache" not in path.parts]
        stats = [(str(path), path.stat()) for path in kept]
        return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _unpack(archive: Path, folder: Path) -> int:
    """Unpack an archive and return its size in bytes."""
    size = archive.stat().st_size
    with gzip.open(archive) as opened, tarfile.open(fileobj=opened, mode="r|") as packed:
        # Refuses names that lead out of the folder.
        packed.extractall(folder, filter="data")
        # The checksum stands behind the last member.
        while opened.read(2**20):
            pass
    # Says that it is still used. A volume may be there to be read only.
    with contextlib.suppress(OSError):
        os.utime(archive)
    return size
