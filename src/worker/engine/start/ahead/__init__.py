"""Reads weights into the page cache while the import of vLLM leaves the disk idle."""

import contextlib
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from worker.children import Child, script_command
from worker.engine.start.ahead import reader
from worker.process.memory import PAGE_CACHE_SHARE, free_memory_bytes
from worker.store import ArtifactLocation, disk

log = logging.getLogger("worker")

# vLLM's load formats that read files through the page cache.
_FORMATS = frozenset({"auto", "hf", "mistral", "safetensors", "pt", "npcache", "bitsandbytes"})
# Seconds that the child has to report before it is killed: a network disk may block it for longer.
_REPORT_TIMEOUT_S = 1.0


class ReadAhead:
    """A child process that reads files into the page cache, up to a number of bytes."""

    def __init__(self, files: Sequence[Path], limit: int) -> None:
        command = script_command(reader.__file__, str(limit), *files)
        self._child = Child(command, stdout=subprocess.PIPE)

    @classmethod
    def start(cls, locations: Sequence[ArtifactLocation]) -> "ReadAhead | None":
        """Start to read the weights in ``locations``, in the order in which they will be loaded.

        The child reads no more than a share of the memory that is free. Returns None if no weights
        are loaded through the page cache, or if their files can't be listed.
        """
        # An error must not stop the startup: the engine reports files that it can't read.
        with contextlib.suppress(OSError):
            files = [
                file.resolve()
                for location in locations
                if location.artifact.load_format.lower() in _FORMATS
                for file in disk.weight_paths(location.directory, location.artifact)
            ]
            if files:
                return cls([*dict.fromkeys(files)], int(PAGE_CACHE_SHARE * free_memory_bytes()))
        return None

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        """Stop the child if it is still running; log how much it has read if it reports in time."""
        self._child.terminate()
        try:
            content, _ = self._child.communicate(timeout=_REPORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return
        with contextlib.suppress(ValueError):
            size, seconds = map(float, content.split())
            log.info("read ahead: %.2f GB of weights in %.2f s", size / 1e9, seconds)
