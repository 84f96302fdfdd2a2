"""Finds or downloads the artifacts that engines load, so that vLLM makes no requests to the hub.

They are determined twice: from the settings before vLLM is imported, so that a download can begin,
and from vLLM's arguments, which are authoritative. Both ways give equal ``Artifact`` objects for
the same artifact. The configs of models that were found may refer to further artifacts.
"""

import contextlib
import json
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker import metrics
from worker.engine.arguments import EngineArguments
from worker.errors import MachineUnfit, StartFailed
from worker.process.lifetime import log_phase
from worker.settings import environment
from worker.settings.environment import process_environ
from worker.settings.names import EMBEDDER_PREFIX
from worker.settings.sources import BAKED_MODEL_FILE, RawSettings
from worker.settings.values import equals_boolean, is_directory, split_adapter_list
from worker.store import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    Origin,
    Places,
    disk,
)
from worker.store.fetcher import ModelFetcher
from worker.store.files import CONFIG, CONFIGS, code_repositories, parse_json_object
from worker.store.places import read_baked_models

log = logging.getLogger("worker")

# Options that select artifacts. If VLLM_EXTRA_ARGS has one of them, only vLLM's parser can read it
# reliably.
_ARTIFACT_OPTIONS = frozenset(
    {"MODEL", "REVISION", "TOKENIZER", "TOKENIZER_REVISION", "LOAD_FORMAT", "DOWNLOAD_DIR"}
)
# Methods of speculative decoding that load no draft model, even if the config contains a model.
_DRAFTLESS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")
# Load formats whose weights only vLLM can find.
_FORMATS_FOUND_BY_VLLM = frozenset({"tensorizer", "gguf"})
# Options that name artifacts in addition to the model and its tokenizer. SC is vLLM's short name of
# SPECULATIVE_CONFIG.
_OTHER_ARTIFACT_OPTIONS = {"LORA_MODULES", "SPECULATIVE_CONFIG", "SC"}


def places_to_search(environ: Mapping[str, str]) -> Places:
    """Return the places to search for models: the image, the platform's, and the hub's cache.

    The variables in ``environ`` determine the hub's cache, so they must have their final values.
    """
    return Places(
        environment.hub_cache_directory(environ), baked=read_baked_models(BAKED_MODEL_FILE)
    )


class EngineArtifacts:
    """The artifacts that a worker's engines load; the search for them starts on creation.

    With ``check_newest``, the hub is asked whether the version on the volume is the newest.
    """

    def __init__(self, raw: RawSettings, check_newest: bool = False) -> None:
        self._raw = raw
        self._newest = check_newest
        # A copy for the downloads, which must not see some variables that the worker sets later.
        self._environ = dict(environment.process_environ())
        self._places = places_to_search(self._environ)
        artifacts = artifacts_in_settings(raw)
        self._artifacts = [item for item in artifacts if is_searched_by_store(item)]
        self._vllm_artifacts = [item for item in artifacts if not is_searched_by_store(item)]
        self._first_download = self._start_fetcher(self._artifacts)

    @property
    def locations_on_disk(self) -> list[ArtifactLocation]:
        """The artifacts in the settings that are on the disk; empty during a download."""
        return self._first_download.locations_on_disk

    def close(self) -> None:
        """End the download that the creation has started; later ones end before their callers."""
        self._first_download.close()

    def go_offline_if_possible(self) -> None:
        """Disable libraries' use of the hub and its token, if the store looks for all artifacts."""
        if self._artifacts and not self._vllm_artifacts and not vllm_needs_hub(self._raw):
            environment.set_unset_variables({"HF_HUB_OFFLINE": "1"})
            if equals_boolean(environment.process_environ().get("HF_HUB_OFFLINE"), True):
                # Remove the token before an engine starts, which would inherit it.
                environment.unset_variable(environment.HUB_TOKEN)

    def fetch_artifacts_in_settings(self) -> list[ArtifactLocation]:
        """Wait for the artifacts in the settings and in their configs; return their locations.

        Raises ``StartFailed`` if only vLLM can find one of them, or if there are none.
        """
        adds_artifacts = _OTHER_ARTIFACT_OPTIONS & self._raw.extra_options.keys()
        if self._vllm_artifacts or not self._artifacts or adds_artifacts:
            names = ", ".join(map(str, self._vllm_artifacts)) or "the models in VLLM_EXTRA_ARGS"
            raise StartFailed(f"Only vLLM itself can find {names}: nothing is downloaded.")
        return [*self.locate_artifacts().values()]

    def locate_and_log(self, artifacts: Sequence[Artifact]) -> dict[Artifact, ArtifactLocation]:
        """Wait for the artifacts in the settings and in ``artifacts``; log where the latter are.

        Call this once: it also counts the downloads.
        """
        with log_phase("fetch"):
            locations = self.locate_artifacts(artifacts)
            for location in locations.values():
                # The store has checked the files in caches.
                if location.origin is Origin.DIRECTORY:
                    try:
                        disk.check_directory(location)
                    except OSError as error:
                        why = error.strerror or error
                        raise MachineUnfit(f"{location.artifact} can't be read: {why}") from error
                metrics.DOWNLOADED_BYTES.inc(location.downloaded_bytes)
                metrics.DOWNLOAD_SECONDS.inc(location.download_s)
            for artifact in artifacts:
                if artifact in locations:
                    # Log the artifact with its own setting: the location may name another one's.
                    log.info("found: %s", replace(locations[artifact], artifact=artifact))
        return locations

    def locate_artifacts(self, extra: Sequence[Artifact] = ()) -> dict[Artifact, ArtifactLocation]:
        locations = self._first_download.wait_for_locations()
        while True:
            referenced = [
                artifact
                for location in locations.values()
                for artifact in artifacts_in_configs(self._raw, location)
            ]
            missing = [
                artifact
                for artifact in (*extra, *referenced)
                if is_searched_by_store(artifact) and artifact not in locations
            ]
            if not missing:
                return locations
            locations |= self._start_fetcher(missing).wait_for_locations()

    def _start_fetcher(self, artifacts: Sequence[Artifact]) -> ModelFetcher:
        return ModelFetcher([*dict.fromkeys(artifacts)], self._places, self._environ, self._newest)


def artifacts_in_settings(raw: RawSettings) -> list[Artifact]:
    """Return the artifacts that engines load, as far as known without vLLM's parser.

    Empty if VLLM_EXTRA_ARGS selects artifacts, for example with --model or --download-dir.
    """
    if _ARTIFACT_OPTIONS & raw.extra_options.keys():
        return []
    engines = {"": raw.main_options, EMBEDDER_PREFIX: raw.embedder_options}
    return [
        artifact
        for prefix, options in engines.items()
        if options.get("MODEL")
        for artifact in _artifacts_of_engine(_artifact_options_namespace(options), prefix)
    ]


def artifacts_in_arguments(arguments: EngineArguments) -> list[Artifact]:
    return [*_artifacts_of_engine(arguments.vllm_args, arguments.prefix)]


def vllm_needs_hub(raw: RawSettings) -> bool:
    """Return whether vLLM will load something from the hub that the store does not look for."""
    for options in (raw.main_options | raw.extra_options, raw.embedder_options):
        for name in ("HF_CONFIG_PATH", "GENERATION_CONFIG"):
            value = options.get(name, "auto")
            if value not in {"auto", "vllm"} and not is_directory(value):
                return True
    return "VLLM_LORA_RESOLVER_HF_REPO_LIST" in raw.values


def artifacts_in_configs(raw: RawSettings, location: ArtifactLocation) -> Iterator[Artifact]:
    """Yield the artifacts in other repositories that configs refer to; vLLM finds them by name."""
    artifact = location.artifact
    # vLLM follows only the references of the served model, not those of a draft model.
    if artifact.kind is ArtifactKind.MODEL and artifact.setting.endswith("MODEL_NAME"):
        config = parse_json_object(disk.read_text_or_empty(location.directory / CONFIG))
        # A draft model in the speculators' format refers to the model to serve. vLLM loads that
        # model at the configured revision.
        verifier: Any = config
        for key in ("speculators_config", "verifier", "name_or_path"):
            verifier = verifier.get(key) if isinstance(verifier, Mapping) else None
        references = [(verifier, artifact.revision)]
        if config.get("model_type") == "ultravox":
            references += [(config.get(key), None) for key in ("audio_model_id", "text_model_id")]
        for name, revision in references:
            if name and isinstance(name, str):
                model = replace(artifact, model=name, revision=revision, loaded_by_name=True)
                yield model
                if model.download_dir:
                    # It is only for weights; other files are in the default cache.
                    yield replace(model, download_dir=None, load_format="dummy")
    if not artifact.code:
        return
    is_embedder = artifact.setting.startswith(EMBEDDER_PREFIX)
    options = raw.embedder_options if is_embedder else raw.main_options | raw.extra_options
    for name in CONFIGS:
        text = disk.read_text_or_empty(location.directory / name)
        # vLLM passes the revision to some of the libraries that load code, but not for tokenizers.
        set_revision = None if name.startswith("tokenizer") else options.get("CODE_REVISION")
        for repository in sorted(code_repositories(text)):
            for revision in dict.fromkeys((None, set_revision)):
                yield Artifact(
                    repository,
                    revision,
                    kind=ArtifactKind.CODE,
                    code=True,
                    loaded_by_name=True,
                    setting=artifact.setting,
                )


def _artifact_options_namespace(options: Mapping[str, str]) -> Namespace:
    """Return the options that select artifacts as a namespace, as vLLM's parser would."""
    adapters, listed = [], options.get("LORA_MODULES", "")
    # Stop at an entry that vLLM will refuse.
    with contextlib.suppress(ValueError):
        for item in split_adapter_list(listed) if listed else ():
            path = json.loads(item).get("path") if item[:1] == "{" else item.partition("=")[2]
            if path:
                adapters.append(Namespace(path=str(path)))
    return Namespace(
        model=options["MODEL"],
        revision=options.get("REVISION"),
        load_format=options.get("LOAD_FORMAT", "auto"),
        download_dir=options.get("DOWNLOAD_DIR"),
        trust_remote_code=equals_boolean(options.get("TRUST_REMOTE_CODE"), True),
        tokenizer=options.get("TOKENIZER"),
        tokenizer_revision=options.get("TOKENIZER_REVISION"),
        skip_tokenizer_init=equals_boolean(options.get("SKIP_TOKENIZER_INIT"), True),
        lora_modules=adapters,
        speculative_config=parse_json_object(options.get("SPECULATIVE_CONFIG", "")),
    )


def _artifacts_of_engine(options: Namespace, prefix: str) -> Iterator[Artifact]:
    """Yield an engine's model and other artifacts; the engine's settings have the prefix.

    ``options`` are vLLM's arguments, or the result of ``_artifact_options_namespace``.
    """
    model = Artifact(
        options.model,
        options.revision,
        options.load_format,
        Path(options.download_dir) if options.download_dir else None,
        code=options.trust_remote_code,
        setting=f"{prefix}MODEL_NAME",
    )
    yield model
    # As in vLLM, the default revision of a tokenizer is the model's revision.
    name = options.tokenizer or model.model
    revision = options.tokenizer_revision or model.revision
    if not options.skip_tokenizer_init and (name, revision) != (model.model, model.revision):
        yield replace(
            model,
            model=name,
            revision=revision,
            load_format="dummy",
            kind=ArtifactKind.TOKENIZER,
            setting=f"{prefix}TOKENIZER_{'REVISION' if name == model.model else 'NAME'}",
        )
    for module in options.lora_modules or ():
        yield Artifact(module.path, kind=ArtifactKind.ADAPTER, setting=f"{prefix}LORA_MODULES")
    if draft := _draft_model_artifact(model, options.speculative_config or {}):
        yield replace(draft, setting=f"{prefix}SPECULATIVE_CONFIG")


def _draft_model_artifact(model: Artifact, speculative: Mapping[str, Any]) -> Artifact | None:
    """Return the separate draft model, if any; None also for mistakes that vLLM reports."""
    name, revision, method = (speculative.get(key) for key in ("model", "revision", "method"))
    if not isinstance(name, str) or not isinstance(revision, str | None) or method in _DRAFTLESS:
        return None
    # vLLM treats a name such as package.module.Class as a class.
    is_class = "." in name and all(map(str.isidentifier, name.split(".")))
    if method is None and (name in {"ngram", "[ngram]"} or is_class):
        return None
    # With the same name, the draft model is the model itself, unless it has another revision.
    if not name or (name == model.model and revision in {None, model.revision}):
        return None
    return replace(model, model=name, revision=revision)


def is_searched_by_store(artifact: Artifact) -> bool:
    """Return whether the store looks for an artifact; otherwise vLLM finds the artifact itself."""
    # vLLM parses this variable in the same way.
    if process_environ().get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}:
        return False
    if artifact.load_format.lower() in _FORMATS_FOUND_BY_VLLM and not is_directory(artifact.model):
        return False
    # Exclude object storage, GGUF files, and names such as ``owner/name:Q4_K_M``, which select one
    # of several quantizations in a repository.
    return ":" not in artifact.model and not artifact.model.endswith(".gguf")
