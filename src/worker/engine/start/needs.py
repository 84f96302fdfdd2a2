"""The artifacts that engines need, according to settings, vLLM's arguments and models' configs.

They are determined twice: from the settings before vLLM is imported, so that a download can begin,
and from vLLM's arguments, which are authoritative. Both ways give equal ``Artifact`` objects for
the same artifact. The configs of models that were found may refer to further artifacts.
"""

import contextlib
import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.settings.environment import process_environ
from worker.settings.names import EMBEDDER_PREFIX
from worker.settings.sources import RawSettings
from worker.settings.values import equals_boolean, is_directory, split_adapter_list
from worker.store import Artifact, ArtifactKind, ArtifactLocation, disk
from worker.store.files import CONFIG, CONFIGS, code_repositories, parse_json_object

# Options that select artifacts. If VLLM_EXTRA_ARGS has one of them, only vLLM's parser can read it
# reliably.
_ARTIFACT_OPTIONS = frozenset(
    {"MODEL", "REVISION", "TOKENIZER", "TOKENIZER_REVISION", "LOAD_FORMAT", "DOWNLOAD_DIR"}
)
# Methods of speculative decoding that load no draft model, even if the config contains a model.
_DRAFTLESS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")
# Load formats whose weights only vLLM can find.
_FORMATS_FOUND_BY_VLLM = frozenset({"tensorizer", "gguf"})


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
    """Return the artifacts that an engine loads: the model, tokenizer, adapters and draft model."""
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
    """Yield the artifacts in other repositories that the configs in a directory refer to.

    vLLM looks these artifacts up by name.
    """
    artifact = location.artifact
    # vLLM follows only the references of the served model, not those of a draft model.
    if artifact.kind is ArtifactKind.MODEL and artifact.setting.endswith("MODEL_NAME"):
        yield from _models_in_config(
            artifact, parse_json_object(disk.read_text_or_empty(location.directory / CONFIG))
        )
    if artifact.code:
        is_embedder = artifact.setting.startswith(EMBEDDER_PREFIX)
        options = raw.embedder_options if is_embedder else raw.main_options | raw.extra_options
        yield from _code_artifacts(location, options.get("CODE_REVISION"))


def _artifact_options_namespace(options: Mapping[str, str]) -> Namespace:
    """Return the options that select artifacts as a namespace, as vLLM's parser would."""
    return Namespace(
        model=options["MODEL"],
        revision=options.get("REVISION"),
        load_format=options.get("LOAD_FORMAT", "auto"),
        download_dir=options.get("DOWNLOAD_DIR"),
        trust_remote_code=equals_boolean(options.get("TRUST_REMOTE_CODE"), True),
        tokenizer=options.get("TOKENIZER"),
        tokenizer_revision=options.get("TOKENIZER_REVISION"),
        skip_tokenizer_init=equals_boolean(options.get("SKIP_TOKENIZER_INIT"), True),
        lora_modules=[*_parse_adapter_namespaces(options.get("LORA_MODULES", ""))],
        speculative_config=parse_json_object(options.get("SPECULATIVE_CONFIG", "")),
    )


def _parse_adapter_namespaces(value: str) -> Iterator[Namespace]:
    """Yield a namespace with each adapter's ``path``; stop at an entry that vLLM will refuse."""
    with contextlib.suppress(ValueError):
        for item in split_adapter_list(value) if value else ():
            path = json.loads(item).get("path") if item[:1] == "{" else item.partition("=")[2]
            if path:
                yield Namespace(path=str(path))


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


def _models_in_config(artifact: Artifact, config: Mapping[str, Any]) -> Iterator[Artifact]:
    """Yield the models that a model's config refers to."""
    # A draft model in the speculators' format refers to the model to serve. vLLM loads that model
    # at the configured revision.
    references = [
        (
            _get_nested_value(config, "speculators_config", "verifier", "name_or_path"),
            artifact.revision,
        )
    ]
    if config.get("model_type") == "ultravox":
        references += [(config.get(key), None) for key in ("audio_model_id", "text_model_id")]
    for name, revision in references:
        if name and isinstance(name, str):
            model = replace(artifact, model=name, revision=revision, loaded_by_name=True)
            yield model
            if model.download_dir:
                # The download directory is only for weights; other files are in the default cache.
                yield replace(model, download_dir=None, load_format="dummy")


def _get_nested_value(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _code_artifacts(location: ArtifactLocation, revision: str | None) -> Iterator[Artifact]:
    """Yield the code in other repositories that a model's configs refer to."""
    for name in CONFIGS:
        # vLLM passes the revision to some of the libraries that load code, but not for tokenizers.
        revisions = {None} if name.startswith("tokenizer") else dict.fromkeys((None, revision))
        for repository in sorted(
            code_repositories(disk.read_text_or_empty(location.directory / name))
        ):
            for code_revision in revisions:
                yield Artifact(
                    repository,
                    code_revision,
                    kind=ArtifactKind.CODE,
                    code=True,
                    loaded_by_name=True,
                    setting=location.artifact.setting,
                )
