"""The models that are meant, looked up while vLLM is being imported."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from worker.doctor.findings import Finding, Level
from worker.settings.names import EMBEDDER
from worker.settings.sources import Given
from worker.store import Reason, Snapshot, Unavailable, Wanted, locate

# How long the hub may take altogether. The import of vLLM takes about as long.
HUB_S = 8.0
# Why a model can't be had, where it is a matter of who may have it.
_ACCESS = frozenset({Reason.TOKEN_MISSING, Reason.NO_ACCESS, Reason.BAD_TOKEN})


class Asked:
    """Models that are being looked up, by the prefix of their settings."""

    def __init__(self, given: Given) -> None:
        self._until = time.monotonic() + HUB_S
        # Its threads are not waited for: whoever asked ends the process.
        pool = ThreadPoolExecutor()
        self._pending = {
            prefix: pool.submit(locate, wanted) for prefix, wanted in _wanted(given).items()
        }

    def result(self, prefix: str) -> Snapshot | Finding | None:
        """Return a model, or why there is none; nothing, if none is meant."""
        pending: Future[Snapshot] | None = self._pending.get(prefix)
        if pending is None:
            return None
        try:
            return pending.result(max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            text = f"the hub did not tell everything within {HUB_S:.0f} s"
            return Finding(Level.UNKNOWN, "model", text, "try again")
        except Unavailable as why:
            return _unavailable(why)
        except OSError as error:
            return Finding(Level.FAIL, "model", f"it can't be read: {error.strerror}")


def _wanted(given: Given) -> dict[str, Wanted]:
    found = {}
    for prefix in ("", EMBEDDER):
        options = given.options(prefix)
        folder = options.get("DOWNLOAD_DIR")
        if model := options.get("MODEL"):
            found[prefix] = Wanted(
                model,
                options.get("REVISION"),
                options.get("LOAD_FORMAT", "auto"),
                Path(folder) if folder else None,
            )
    return found


def _unavailable(why: Unavailable) -> Finding:
    topic = "access" if why.reason in _ACCESS else "model"
    return Finding(Level.FAIL, topic, why.told, why.remedy)
