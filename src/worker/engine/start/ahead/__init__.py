"""Reads weights into the page cache while vLLM is imported, which leaves the disk idle."""

import contextlib
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from worker.children import Child, script
from worker.engine.start.ahead import reader
from worker.process.memory import CACHE_SHARE, free_memory
from worker.store import Found, disk

log = logging.getLogger("worker")

# vLLM's load formats that read files through the page cache.
_CACHED = frozenset({"auto", "hf", "mistral", "safetensors", "pt", "npcache", "bitsandbytes"})
# Seconds that the child has for its report. A network disk may hold it up longer than that.
_GRACE_S = 1.0


class ReadAhead:
    """A child process that reads files in their order, so many bytes at most."""

    def __init__(self, files: Sequence[Path], limit: int) -> None:
        command = script(reader.__file__, str(limit), *files)
        self._child = Child(command, stdout=subprocess.PIPE)

    @classmethod
    def of(cls, found: Sequence[Found]) -> "ReadAhead | None":
        """Begin to read the weights of what was found, in the order in which they are loaded.

        Return None if all are loaded in another way.
        """
        # What can't be read, or begun, is no reason to end a start: the engine says what it misses.
        with contextlib.suppress(OSError):
            files = [
                file.resolve()
                for one in found
                if one.wanted.load_format.lower() in _CACHED
                for file in disk.weights(one.place, one.wanted)
            ]
            if files:
                return cls([*dict.fromkeys(files)], int(CACHE_SHARE * free_memory()))
        return None

    @property
    def pid(self) -> int:
        return self._child.pid

    def end(self) -> None:
        """End the child, if it still runs, and log what it has read."""
        self._child.terminate()
        try:
            content, _ = self._child.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return
        with contextlib.suppress(ValueError):
            size, seconds = map(float, content.split())
            log.info("start-up: %.2f GB of weights read ahead in %.2f s", size / 1e9, seconds)
