"""Looks at the adapters of the volume that nobody has named yet: whether they could be loaded."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from worker.engine.run.adapters.files import BrokenAdapter
from worker.volume.adapters import Version, adapter_versions

log = logging.getLogger(__name__)

# Adapters that are looked at for one listing: a look reads two files of the network volume. The
# others count as sound until the next listing.
MOST = 32

# An adapter's version, and why it can't be loaded; None if no look has found a reason.
Look = tuple[Version, str | None]


class Looks:
    """What is known of each adapter, by name: its files are read once for each version of them.

    Args:
        root: has a directory for each adapter.
        check: reads an adapter's configuration, and which weights it has; raises
            ``BrokenAdapter``.
    """

    def __init__(self, root: Path, check: Callable[[Path], None]) -> None:
        self._root = root
        self._check = check
        self._known: dict[str, Look] = {}
        self._lock = threading.Lock()

    def all(self) -> dict[str, Look]:
        """Return the adapters that have all their files, sorted; call in a thread."""
        with self._lock:
            versions = adapter_versions(self._root)
            found: dict[str, Look] = {name: (version, None) for name, version in versions.items()}
            known = {
                name: look for name, look in self._known.items() if versions.get(name) == look[0]
            }
            for name in [name for name in found if name not in known][:MOST]:
                known[name] = versions[name], self._reason(name)
            self._known = known
            return found | {name: known[name] for name in found if name in known}

    def _reason(self, name: str) -> str | None:
        # What can't be read may be on its way, or gone: whoever names it learns more.
        with contextlib.suppress(OSError):
            try:
                self._check(self._root / name)
            except BrokenAdapter as broken:
                log.warning("the adapter %s can't be loaded: %s", name, broken)
                return str(broken)
        return None
