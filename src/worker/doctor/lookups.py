"""Look-ups of models and other artifacts, on the disk and on the hub.

Models are looked up while vLLM is imported; adapters, draft models and other tokenizers follow. All
files but the weights of a model on the hub are downloaded to a temporary directory.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from worker.doctor.findings import Finding, Level
from worker.engine.start.artifacts import (
    artifacts_in_settings,
    is_searched_by_store,
    places_to_search,
)
from worker.settings.environment import process_environ
from worker.settings.sources import RawSettings
from worker.store import ACCESS_REASONS, Artifact, ModelUnavailable, Snapshot
from worker.store.hub import find_snapshot

# Seconds that the look-up of an artifact may take, about as long as the import of vLLM.
HUB_TIMEOUT_S = 15.0
# Suffix of the settings that name an engine's model.
_MODEL_SETTING = "MODEL_NAME"


class Lookups:
    """Looks up artifacts in background threads; files from the hub are stored in ``folder``.

    ``models`` are those that the settings name, by the prefixes of their engines' settings.
    """

    def __init__(self, raw_settings: RawSettings, folder: Path) -> None:
        # The process exits without waiting for the pool's threads.
        self._pool = ThreadPoolExecutor()
        self._folder = folder
        self._pending: dict[Artifact, tuple[Future[Snapshot], float]] = {}
        self._places = places_to_search(process_environ())
        self.models = {
            artifact.setting.removesuffix(_MODEL_SETTING): artifact
            for artifact in artifacts_in_settings(raw_settings)
            if artifact.setting.endswith(_MODEL_SETTING)
        }
        for model in self.models.values():
            self.start_lookup(model)

    def start_lookup(self, artifact: Artifact) -> None:
        if artifact not in self._pending:
            deadline = time.monotonic() + HUB_TIMEOUT_S
            future = self._pool.submit(find_snapshot, artifact, self._places, self._folder)
            self._pending[artifact] = (future, deadline)

    def wait_for_result(self, artifact: Artifact) -> Snapshot | Finding:
        if not is_searched_by_store(artifact):
            text = f"{artifact.model} is not checked: it is neither a directory nor on the hub"
            return Finding(Level.UNKNOWN, "model", text)
        self.start_lookup(artifact)
        pending, deadline = self._pending[artifact]
        try:
            return pending.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            text = f"the hub did not answer all requests within {HUB_TIMEOUT_S:.0f} s"
            return Finding(Level.UNKNOWN, "model", text, "try again")
        except ModelUnavailable as why:
            topic = "access" if why.reason in ACCESS_REASONS else "model"
            return Finding(Level.FAIL, topic, why.problem, why.remedy)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            return Finding(Level.FAIL, "model", f"{artifact.model} can't be read: {reason}")
