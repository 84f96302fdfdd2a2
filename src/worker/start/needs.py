"""What engines load, as the settings, as vLLM's arguments and as models themselves name it."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.settings.environment import process_environ
from worker.settings.names import EMBEDDER
from worker.settings.sources import Given, options_of
from worker.settings.values import adapters, directory, says
from worker.store import Found, Kind, Wanted, disk
from worker.store.files import CONFIG, CONFIGS, code_elsewhere, json_object

# Where they stand among the extra arguments, vLLM's parser is to say first what is meant.
_NAMING = frozenset(
    {"MODEL", "REVISION", "TOKENIZER", "TOKENIZER_REVISION", "LOAD_FORMAT", "DOWNLOAD_DIR"}
)
# What is loaded beside the model: among the extra arguments known once they are parsed.
_BESIDE = frozenset({"LORA_MODULES", "SPECULATIVE_CONFIG", "SC"})
# Methods of speculative decoding that need no other model, whatever they are given as one.
_DRAFTLESS = (
    "ngram",
    "[ngram]",
    "ngram_gpu",
    "suffix",
    "extract_hidden_states",
    "custom_class",
)
# Forms of weights that are no files of a repository, or one of many in it.
_FOUND_BY_VLLM = frozenset({"tensorizer", "gguf"})


def named(given: Given) -> list[Wanted]:
    """Name what the settings name, before vLLM has read them."""
    if _NAMING & options_of(given.extra).keys():
        return []
    return [*_named(given, ""), *_named(given, EMBEDDER)]


def named_beside(given: Given) -> bool:
    """Tell whether something beside the models is named where only vLLM's parser reads it."""
    return bool(_BESIDE & options_of(given.extra).keys())


def asks_hub(given: Given) -> bool:
    """Tell whether vLLM is to load something from the hub that the store does not look for."""
    for prefix in ("", EMBEDDER):
        options = _options(given, prefix)
        for name in ("HF_CONFIG_PATH", "GENERATION_CONFIG"):
            place = options.get(name, "auto")
            if place not in {"auto", "vllm"} and not directory(place):
                return True
    return "VLLM_LORA_RESOLVER_HF_REPO_LIST" in given.values


def _options(given: Given, prefix: str) -> dict[str, str]:
    """Select an engine's options; the extra arguments are the first engine's."""
    return given.options(prefix) | ({} if prefix else options_of(given.extra))


def _named(given: Given, prefix: str) -> Iterator[Wanted]:
    options = given.options(prefix)
    if not options.get("MODEL"):
        return
    folder = options.get("DOWNLOAD_DIR")
    tokenizer = options.get("TOKENIZER"), options.get("TOKENIZER_REVISION")
    yield from _of_engine(
        prefix,
        Wanted(
            options["MODEL"],
            options.get("REVISION"),
            options.get("LOAD_FORMAT", "auto"),
            Path(folder) if folder else None,
            code=says(options.get("TRUST_REMOTE_CODE"), True),
        ),
        None if says(options.get("SKIP_TOKENIZER_INIT"), True) else tokenizer,
        [*_adapters(options.get("LORA_MODULES", ""))],
        json_object(options.get("SPECULATIVE_CONFIG", "")),
    )


def _adapters(written: str) -> Iterator[str]:
    """Name the adapters' paths; what is written wrong, vLLM's parser will tell."""
    with contextlib.suppress(ValueError):
        for each in adapters(written) if written else ():
            path = json.loads(each).get("path") if each.startswith("{") else each.partition("=")[2]
            if path:
                yield str(path)


def needed(arguments: EngineArguments) -> list[Wanted]:
    """Name what an engine loads: its model first, then its tokenizer, adapters, and draft model."""
    options = arguments.vllm
    folder = options.download_dir
    model = Wanted(
        options.model,
        options.revision,
        options.load_format,
        Path(folder) if folder else None,
        code=options.trust_remote_code,
    )
    tokenizer = options.tokenizer, options.tokenizer_revision
    tokenized = None if options.skip_tokenizer_init else tokenizer
    paths = [module.path for module in options.lora_modules or ()]
    speculative = options.speculative_config or {}
    return [*_of_engine(arguments.prefix, model, tokenized, paths, speculative)]


def _of_engine(
    prefix: str,
    model: Wanted,
    tokenizer: tuple[str | None, str | None] | None,
    paths: Sequence[str],
    speculative: Mapping[str, Any],
) -> Iterator[Wanted]:
    """Complete what is said of an engine's model by what is loaded beside it.

    Args:
        prefix: of the engine's settings.
        model: its own.
        tokenizer: name and revision, of which each may be the model's; None, if none is loaded.
        paths: of adapters.
        speculative: the configuration of speculative decoding.
    """
    yield replace(model, setting=f"{prefix}MODEL_NAME")
    if tokenizer:
        # As vLLM, which takes the model's revision where the tokenizer has none of its own.
        name, revision = tokenizer[0] or model.model, tokenizer[1] or model.revision
        if (name, revision) != (model.model, model.revision):
            yield replace(
                model,
                model=name,
                revision=revision,
                load_format="dummy",
                kind=Kind.TOKENIZER,
                setting=f"{prefix}TOKENIZER_{'REVISION' if name == model.model else 'NAME'}",
            )
    for path in paths:
        yield Wanted(path, kind=Kind.ADAPTER, setting=f"{prefix}LORA_MODULES")
    if draft := _draft(model, speculative):
        yield replace(draft, setting=f"{prefix}SPECULATIVE_CONFIG")


def _draft(model: Wanted, speculative: Mapping[str, Any]) -> Wanted | None:
    """Name the model that drafts, if it is another one; what is written wrong, vLLM will tell."""
    name, revision, method = (speculative.get(key) for key in ("model", "revision", "method"))
    if not isinstance(name, str) or not isinstance(revision, str | None) or method in _DRAFTLESS:
        return None
    if method is None and (name in {"ngram", "[ngram]"} or _of_class(name)):
        return None
    # What is called like the model is the model, unless it has a revision of its own.
    if not name or (name == model.model and revision in {None, model.revision}):
        return None
    return replace(model, model=name, revision=revision)


def _of_class(name: str) -> bool:
    """Tell whether vLLM takes the name of a draft for that of a class: package.module.Class."""
    return "." in name and all(map(str.isidentifier, name.split(".")))


def found_by_store(wanted: Wanted) -> bool:
    """Tell whether the store knows how to find something: else, vLLM does."""
    # As vLLM reads it.
    if process_environ().get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}:
        return False
    if wanted.load_format.lower() in _FOUND_BY_VLLM and not directory(wanted.model):
        return False
    # Object storage, a file, or a quantization in a repository of several.
    return ":" not in wanted.model and not wanted.model.endswith(".gguf")


def elsewhere(found: Found, given: Given) -> Iterator[Wanted]:
    """Name what a configuration refers to in other repositories, where vLLM finds it by name.

    Args:
        found: what has the configuration.
        given: the settings, which say at which revision code is loaded.
    """
    wanted = found.wanted
    # Nobody asks a draft for the model that it was made for.
    if wanted.kind is Kind.MODEL and wanted.setting.endswith("MODEL_NAME"):
        yield from _models_elsewhere(wanted, json_object(disk.text(found.place / CONFIG)))
    if wanted.code:
        prefix = EMBEDDER if wanted.setting.startswith(EMBEDDER) else ""
        yield from _code_elsewhere(found, _options(given, prefix).get("CODE_REVISION"))


def _models_elsewhere(wanted: Wanted, config: Mapping[str, Any]) -> Iterator[Wanted]:
    """Name the models that a model's configuration refers to."""
    # A draft in the speculators' format names the model to serve, for which vLLM takes the
    # revision that is set.
    named = [(_within(config, "speculators_config", "verifier", "name_or_path"), wanted.revision)]
    if config.get("model_type") == "ultravox":
        named += [(config.get(key), None) for key in ("audio_model_id", "text_model_id")]
    for name, revision in named:
        if name and isinstance(name, str):
            model = replace(wanted, model=name, revision=revision, by_name=True)
            yield model
            if model.download_dir:
                # Only weights are looked for there.
                yield replace(model, download_dir=None, load_format="dummy")


def _within(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _code_elsewhere(found: Found, revision: str | None) -> Iterator[Wanted]:
    """Name the repositories that code comes from, beside the one that was found."""
    for name in CONFIGS:
        # vLLM hands the revision on to some of the libraries that load code, never for tokenizers.
        revisions = {None} if name.startswith("tokenizer") else dict.fromkeys((None, revision))
        for repository in sorted(code_elsewhere(disk.text(found.place / name))):
            for each in revisions:
                yield Wanted(
                    repository,
                    each,
                    kind=Kind.CODE,
                    code=True,
                    by_name=True,
                    setting=found.wanted.setting,
                )
