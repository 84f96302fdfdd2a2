"""Finds or downloads the artifacts that engines load, so that vLLM makes no requests to the hub.

The download can begin before vLLM is imported.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.engine.start.needs import (
    artifacts_in_configs,
    artifacts_in_settings,
    is_found_by_store,
    needs_hub,
)
from worker.errors import StartFailed
from worker.process.phases import phase
from worker.settings.environment import (
    HUB_TOKEN,
    hub_cache,
    process_environ,
    set_defaults,
    unset_variable,
)
from worker.settings.sources import BAKED_MODEL_FILE, RawSettings
from worker.settings.values import equals_boolean
from worker.store import Artifact, ArtifactLocation, Places
from worker.store.fetcher import ModelFetcher
from worker.store.places import baked_models

log = logging.getLogger("worker")

# Options that name artifacts in addition to the model and its tokenizer. SC is vLLM's short name of
# SPECULATIVE_CONFIG.
_FURTHER_OPTIONS = {"LORA_MODULES", "SPECULATIVE_CONFIG", "SC"}


def find_places(environ: Mapping[str, str]) -> Places:
    """Return the places to search for models: the image, the platform's cache and the hub's cache.

    The variables in ``environ`` determine the hub's cache, so they must have their final values.
    """
    return Places(hub_cache(environ), baked=baked_models(BAKED_MODEL_FILE))


class EngineArtifacts:
    """The artifacts that a worker's engines load; the search for them starts on creation."""

    def __init__(self, raw_settings: RawSettings, check_newest: bool = False) -> None:
        """Start the search for the artifacts in the settings.

        Args:
            raw_settings: All settings that are set.
            check_newest: Whether to check on the hub if the version on the volume is the newest.
        """
        self._raw_settings = raw_settings
        self._check_newest = check_newest
        # A copy, because some variables that are set later are for this process only.
        self._environ = dict(process_environ())
        self._places = find_places(self._environ)
        artifacts = artifacts_in_settings(raw_settings)
        self._artifacts = [artifact for artifact in artifacts if is_found_by_store(artifact)]
        self._artifacts_left_to_vllm = [
            artifact for artifact in artifacts if not is_found_by_store(artifact)
        ]
        self._first_download = self._start_download(self._artifacts)

    @property
    def on_disk(self) -> list[ArtifactLocation]:
        """The artifacts in the settings that are on the disk; empty during a download."""
        return self._first_download.on_disk

    def close(self) -> None:
        """Stop a download that is still running."""
        self._first_download.close()

    def go_offline(self) -> None:
        """Disable requests to the hub by libraries, if the store looks for all artifacts itself.

        If requests are disabled, also remove the hub's token from the environment.
        """
        if (
            self._artifacts
            and not self._artifacts_left_to_vllm
            and not needs_hub(self._raw_settings)
        ):
            set_defaults({"HF_HUB_OFFLINE": "1"})
            if equals_boolean(process_environ().get("HF_HUB_OFFLINE"), True):
                # Remove the token before an engine starts, which would inherit it.
                unset_variable(HUB_TOKEN)

    def prefetch(self) -> list[ArtifactLocation]:
        """Wait for all artifacts in the settings and return their locations.

        Raises:
            ModelUnavailable: An artifact can't be found or downloaded.
            StartFailed: The settings name no artifact, only vLLM can find one of them,
                VLLM_EXTRA_ARGS adds artifacts, or a download stopped before it was complete.
        """
        if (
            self._artifacts_left_to_vllm
            or not self._artifacts
            or _FURTHER_OPTIONS & self._raw_settings.extra_options.keys()
        ):
            names = (
                ", ".join(map(str, self._artifacts_left_to_vllm)) or "what VLLM_EXTRA_ARGS names"
            )
            raise StartFailed(f"Only vLLM itself can find {names}: nothing is downloaded.")
        return [*self.wait().values()]

    def find(self, artifacts: Sequence[Artifact]) -> dict[Artifact, ArtifactLocation]:
        """Wait for the artifacts in the settings and in ``artifacts``; log the locations of these.

        Raises:
            ModelUnavailable: An artifact can't be found or downloaded.
            StartFailed: A download stopped before it was complete.
        """
        with phase("fetch"):
            locations = self.wait(artifacts)
            for artifact in artifacts:
                if artifact in locations:
                    # The location may have been found for another setting; log the setting of this
                    # artifact.
                    log.info("found: %s", replace(locations[artifact], artifact=artifact))
        return locations

    def wait(self, further: Sequence[Artifact] = ()) -> dict[Artifact, ArtifactLocation]:
        """Wait for the artifacts in the settings, in ``further``, and in the configs of both.

        Raises:
            ModelUnavailable: An artifact can't be found or downloaded.
            StartFailed: A download stopped before it was complete.
        """
        locations = self._first_download.result()
        while missing := self._missing_artifacts(locations, further):
            locations |= self._start_download(missing).result()
        return locations

    def _missing_artifacts(
        self, locations: Mapping[Artifact, ArtifactLocation], further: Sequence[Artifact]
    ) -> list[Artifact]:
        """Return the artifacts of ``further`` and of configs that were not searched for yet."""
        referenced = [
            artifact
            for location in locations.values()
            for artifact in artifacts_in_configs(self._raw_settings, location)
        ]
        return [
            artifact
            for artifact in (*further, *referenced)
            if is_found_by_store(artifact) and artifact not in locations
        ]

    def _start_download(self, artifacts: Sequence[Artifact]) -> ModelFetcher:
        return ModelFetcher(
            [*dict.fromkeys(artifacts)], self._places, self._environ, self._check_newest
        )
