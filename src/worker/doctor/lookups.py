"""Look-ups of models and other artifacts, on the disk and on the hub.

Models are looked up while vLLM is imported; adapters, draft models and other tokenizers follow.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments
from worker.engine.start.artifacts import places_to_search
from worker.engine.start.needs import artifacts_in_settings, is_searched_by_store
from worker.settings.environment import process_environ
from worker.settings.sources import RawSettings
from worker.store import ACCESS_REASONS, Artifact, ArtifactKind, ModelUnavailable, Origin, Snapshot
from worker.store.files import has_required_files
from worker.store.hub import find_snapshot
from worker.volume.adapters import CONFIG, WEIGHTS

# Seconds that the look-up of an artifact may take, about as long as the import of vLLM.
HUB_TIMEOUT_S = 8.0
# Suffix of the settings that name an engine's model.
_MODEL_SETTING = "MODEL_NAME"


class Lookups:
    """Looks up artifacts in background threads; first the models that the settings name.

    Attributes:
        models: The models that the settings name, by the prefixes of their engines' settings.
    """

    def __init__(self, raw_settings: RawSettings) -> None:
        # The process exits without waiting for the pool's threads.
        self._pool = ThreadPoolExecutor()
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
        """Start to look up an artifact, unless its look-up has already been started."""
        if artifact not in self._pending:
            deadline = time.monotonic() + HUB_TIMEOUT_S
            future = self._pool.submit(find_snapshot, artifact, self._places)
            self._pending[artifact] = (future, deadline)

    def wait_for_result(self, artifact: Artifact) -> Snapshot | Finding:
        """Wait for an artifact's look-up; return its snapshot, or a finding on the failure."""
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


def check_artifact(
    artifact: Artifact, result: Snapshot | Finding, engine: EngineArguments
) -> Finding:
    """Check that an adapter, draft model or tokenizer of an engine exists and has its files."""
    topic = "draft model" if artifact.kind is ArtifactKind.MODEL else artifact.kind
    # A finding names an adapter as the setting does, and other artifacts by the setting's name.
    names = {module.path: module.name for module in engine.vllm_args.lora_modules or ()}
    name = names.get(artifact.model, artifact.setting)
    if isinstance(result, Finding):
        return replace(result, topic=topic, text=f"{name}: {result.text}")
    if problem := _file_problem(artifact, result):
        text = f"{name}: {problem} in {artifact.model}"
        return Finding(Level.FAIL, topic, text, f"name another {topic}")
    where = {Origin.DIRECTORY: "is a directory", Origin.DOWNLOAD: "is on the hub"}.get(
        result.origin, f"was found in the {result.origin}"
    )
    return Finding(Level.OK, topic, f"{name}: {artifact.model} {where}")


def _file_problem(artifact: Artifact, snapshot: Snapshot) -> str:
    """Return the problem of an artifact's files; empty if there is no problem."""
    names = [file.name for file in (*snapshot.weights, *snapshot.others)]
    if artifact.kind is ArtifactKind.TOKENIZER:
        return "" if has_required_files(names, artifact) else "there are no tokenizer files"
    if artifact.kind is ArtifactKind.ADAPTER and CONFIG not in names:
        return f"there is no {CONFIG}"
    if artifact.kind is ArtifactKind.ADAPTER and not snapshot.weights:
        return f"there is no {WEIGHTS}"
    return snapshot.damage or ("" if snapshot.weights else "there are no weights")
