"""Finds or downloads the artifacts that engines load, so that vLLM makes no requests to the hub.

The download can begin before vLLM is imported.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker import metrics
from worker.engine.start import needs
from worker.errors import MachineUnfit, StartFailed
from worker.process.phases import log_phase
from worker.settings import environment
from worker.settings.sources import BAKED_MODEL_FILE, RawSettings
from worker.settings.values import equals_boolean
from worker.store import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    ModelUnavailable,
    Origin,
    Places,
    disk,
)
from worker.store.fetcher import ModelFetcher
from worker.store.places import read_baked_models
from worker.store.refusals import Reason

log = logging.getLogger("worker")

# Options that name artifacts in addition to the model and its tokenizer. SC is vLLM's short name of
# SPECULATIVE_CONFIG.
_OPTIONS = {"LORA_MODULES", "SPECULATIVE_CONFIG", "SC"}


def places_to_search(environ: Mapping[str, str]) -> Places:
    """Return the places to search for models: the image, the platform's, and the hub's cache.

    The variables in ``environ`` determine the hub's cache, so they must have their final values.
    """
    return Places(
        environment.hub_cache_directory(environ), baked=read_baked_models(BAKED_MODEL_FILE)
    )


class EngineArtifacts:
    """The artifacts that a worker's engines load; the search for them starts on creation."""

    def __init__(self, raw: RawSettings, check_newest: bool = False) -> None:
        """Start the search for the artifacts in the settings.

        With ``check_newest``, check on the hub if the version on the volume is the newest.
        """
        self._raw = raw
        self._newest = check_newest
        # A copy for the downloads, which must not see some variables that the worker sets later.
        self._environ = dict(environment.process_environ())
        self._places = places_to_search(self._environ)
        artifacts = needs.artifacts_in_settings(raw)
        self._artifacts = [item for item in artifacts if needs.is_searched_by_store(item)]
        self._vllm_artifacts = [item for item in artifacts if not needs.is_searched_by_store(item)]
        self._first_download = self._start_fetcher(self._artifacts)

    @property
    def locations_on_disk(self) -> list[ArtifactLocation]:
        """The artifacts in the settings that are on the disk; empty during a download."""
        return self._first_download.locations_on_disk

    def close(self) -> None:
        """Stop a download that is still running."""
        self._first_download.close()

    def go_offline_if_possible(self) -> None:
        """Disable libraries' use of the hub and its token, if the store looks for all artifacts."""
        if self._artifacts and not self._vllm_artifacts and not needs.vllm_needs_hub(self._raw):
            environment.set_unset_variables({"HF_HUB_OFFLINE": "1"})
            if equals_boolean(environment.process_environ().get("HF_HUB_OFFLINE"), True):
                # Remove the token before an engine starts, which would inherit it.
                environment.unset_variable(environment.HUB_TOKEN)

    def fetch_artifacts_in_settings(self) -> list[ArtifactLocation]:
        """Wait for the artifacts in the settings and in their configs; return their locations.

        Raises:
            ModelUnavailable: An artifact can't be found or downloaded.
            StartFailed: The settings name no artifact, only vLLM can find one of the artifacts,
                VLLM_EXTRA_ARGS adds artifacts, or a download stopped before it was complete.
        """
        if self._vllm_artifacts or not self._artifacts or _OPTIONS & self._raw.extra_options.keys():
            names = ", ".join(map(str, self._vllm_artifacts)) or "the models in VLLM_EXTRA_ARGS"
            raise StartFailed(f"Only vLLM itself can find {names}: nothing is downloaded.")
        return [*self.locate_artifacts().values()]

    def locate_and_log(self, artifacts: Sequence[Artifact]) -> dict[Artifact, ArtifactLocation]:
        """Wait for the artifacts in the settings and in ``artifacts``; log where the latter are.

        Call this once: it also counts the downloads.

        Raises:
            ModelUnavailable: An artifact can't be found, downloaded or loaded.
            StartFailed: A download stopped before it was complete.
            MachineUnfit: The disk of an artifact can't be read.
        """
        with log_phase("fetch"):
            locations = self.locate_artifacts(artifacts)
            for location in locations.values():
                _check_directory(location)
                metrics.DOWNLOADED_BYTES.inc(location.downloaded_bytes)
                metrics.DOWNLOAD_SECONDS.inc(location.download_s)
            for artifact in artifacts:
                if artifact in locations:
                    # Log the artifact with its own setting: the location may name another one's.
                    log.info("found: %s", replace(locations[artifact], artifact=artifact))
        return locations

    def locate_artifacts(self, extra: Sequence[Artifact] = ()) -> dict[Artifact, ArtifactLocation]:
        """Wait for the artifacts in the settings, in ``extra``, and in the configs of both.

        Raises:
            ModelUnavailable: An artifact can't be found or downloaded.
            StartFailed: A download stopped before it was complete.
        """
        locations = self._first_download.wait_for_locations()
        while missing := self._unsearched_artifacts(locations, extra):
            locations |= self._start_fetcher(missing).wait_for_locations()
        return locations

    def _unsearched_artifacts(
        self, locations: Mapping[Artifact, ArtifactLocation], extra: Sequence[Artifact]
    ) -> list[Artifact]:
        """Return the artifacts of ``extra`` and of configs that were not searched for yet."""
        referenced = [
            artifact
            for location in locations.values()
            for artifact in needs.artifacts_in_configs(self._raw, location)
        ]
        return [
            artifact
            for artifact in (*extra, *referenced)
            if needs.is_searched_by_store(artifact) and artifact not in locations
        ]

    def _start_fetcher(self, artifacts: Sequence[Artifact]) -> ModelFetcher:
        return ModelFetcher([*dict.fromkeys(artifacts)], self._places, self._environ, self._newest)


def _check_directory(location: ArtifactLocation) -> None:
    """Check the weights in an operator's directory; the store has checked those in caches."""
    artifact = location.artifact
    if location.origin is not Origin.DIRECTORY or artifact.kind is not ArtifactKind.MODEL:
        return
    try:
        problem = disk.weights_problem(location.directory, artifact)
    except OSError as error:
        raise MachineUnfit(f"{artifact} can't be read: {error.strerror or error}") from error
    if problem:
        raise ModelUnavailable(artifact, Reason.BROKEN_FILES, problem)
