"""Which repositories engines need: read from settings, vLLM's arguments and models' configs.

What settings name is read twice: before vLLM is imported, so that a download can begin, and once
more from vLLM's arguments, which alone are certain. A repository that both name is the same
``Wanted``. Configs of models that were found may name further repositories.
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
from worker.settings.names import EMBEDDER
from worker.settings.sources import Given
from worker.settings.values import adapters, is_directory, says
from worker.store import Found, Kind, Wanted, disk
from worker.store.files import CONFIG, CONFIGS, code_elsewhere, json_object

# Options about the model. In VLLM_EXTRA_ARGS, only vLLM's parser reads them with certainty.
_MODEL_OPTIONS = frozenset(
    {"MODEL", "REVISION", "TOKENIZER", "TOKENIZER_REVISION", "LOAD_FORMAT", "DOWNLOAD_DIR"}
)
# Methods of speculative decoding that load no draft model, even if one is named.
_DRAFTLESS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")
# Load formats whose weights only vLLM finds.
_FOUND_BY_VLLM = frozenset({"tensorizer", "gguf"})


def wanted_by_settings(given: Given) -> list[Wanted]:
    """Return what engines load, as far as it is known without vLLM's parser.

    Empty if VLLM_EXTRA_ARGS decides on the model.
    """
    if _MODEL_OPTIONS & given.from_extra.keys():
        return []
    engines = {"": given.main, EMBEDDER: given.embedder}
    return [
        wanted
        for prefix, options in engines.items()
        if options.get("MODEL")
        for wanted in _wanted(_read(options), prefix)
    ]


def wanted_by_arguments(arguments: EngineArguments) -> list[Wanted]:
    """Return what an engine loads: its model first, then its tokenizer, adapters, draft model."""
    return [*_wanted(arguments.vllm, arguments.prefix)]


def asks_hub(given: Given) -> bool:
    """Return whether vLLM is to load something from the hub that the store does not look for."""
    for options in (given.main | given.from_extra, given.embedder):
        for name in ("HF_CONFIG_PATH", "GENERATION_CONFIG"):
            place = options.get(name, "auto")
            if place not in {"auto", "vllm"} and not is_directory(place):
                return True
    return "VLLM_LORA_RESOLVER_HF_REPO_LIST" in given.values


def elsewhere(given: Given, found: Found) -> Iterator[Wanted]:
    """Yield what a directory's configs name in other repositories.

    vLLM looks for it by its name.
    """
    wanted = found.wanted
    # A draft model's own references don't matter: vLLM follows only the served model's.
    if wanted.kind is Kind.MODEL and wanted.setting.endswith("MODEL_NAME"):
        yield from _models_elsewhere(wanted, json_object(disk.text(found.place / CONFIG)))
    if wanted.code:
        of_embedder = wanted.setting.startswith(EMBEDDER)
        options = given.embedder if of_embedder else given.main | given.from_extra
        yield from _code_elsewhere(found, options.get("CODE_REVISION"))


def _read(options: Mapping[str, str]) -> Namespace:
    """Read what says what an engine loads, as vLLM's parser does."""
    return Namespace(
        model=options["MODEL"],
        revision=options.get("REVISION"),
        load_format=options.get("LOAD_FORMAT", "auto"),
        download_dir=options.get("DOWNLOAD_DIR"),
        trust_remote_code=says(options.get("TRUST_REMOTE_CODE"), True),
        tokenizer=options.get("TOKENIZER"),
        tokenizer_revision=options.get("TOKENIZER_REVISION"),
        skip_tokenizer_init=says(options.get("SKIP_TOKENIZER_INIT"), True),
        lora_modules=[*_adapters(options.get("LORA_MODULES", ""))],
        speculative_config=json_object(options.get("SPECULATIVE_CONFIG", "")),
    )


def _adapters(value: str) -> Iterator[Namespace]:
    """Yield the entries of LORA_MODULES that have a path; vLLM's parser reports what is wrong."""
    with contextlib.suppress(ValueError):
        for item in adapters(value) if value else ():
            path = json.loads(item).get("path") if item[:1] == "{" else item.partition("=")[2]
            if path:
                yield Namespace(path=str(path))


def _wanted(options: Namespace, prefix: str) -> Iterator[Wanted]:
    """Yield an engine's model, and what is loaded besides it, by the options of ``_read``."""
    model = Wanted(
        options.model,
        options.revision,
        options.load_format,
        Path(options.download_dir) if options.download_dir else None,
        code=options.trust_remote_code,
        setting=f"{prefix}MODEL_NAME",
    )
    yield model
    # As in vLLM, a tokenizer without a revision has the model's.
    name = options.tokenizer or model.model
    revision = options.tokenizer_revision or model.revision
    if not options.skip_tokenizer_init and (name, revision) != (model.model, model.revision):
        yield replace(
            model,
            model=name,
            revision=revision,
            load_format="dummy",
            kind=Kind.TOKENIZER,
            setting=f"{prefix}TOKENIZER_{'REVISION' if name == model.model else 'NAME'}",
        )
    for module in options.lora_modules or ():
        yield Wanted(module.path, kind=Kind.ADAPTER, setting=f"{prefix}LORA_MODULES")
    if draft := _draft(model, options.speculative_config or {}):
        yield replace(draft, setting=f"{prefix}SPECULATIVE_CONFIG")


def _draft(model: Wanted, speculative: Mapping[str, Any]) -> Wanted | None:
    """Return the draft model if it is another one; None also if vLLM will report a mistake."""
    name, revision, method = (speculative.get(key) for key in ("model", "revision", "method"))
    if not isinstance(name, str) or not isinstance(revision, str | None) or method in _DRAFTLESS:
        return None
    # vLLM takes a name such as package.module.Class for a class.
    is_class = "." in name and all(map(str.isidentifier, name.split(".")))
    if method is None and (name in {"ngram", "[ngram]"} or is_class):
        return None
    # With the name of the model it is the model, unless it has a revision of its own.
    if not name or (name == model.model and revision in {None, model.revision}):
        return None
    return replace(model, model=name, revision=revision)


def found_by_store(wanted: Wanted) -> bool:
    """True if the store looks for this; else vLLM finds it itself."""
    # Read as vLLM reads it.
    if process_environ().get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}:
        return False
    if wanted.load_format.lower() in _FOUND_BY_VLLM and not is_directory(wanted.model):
        return False
    # Not object storage, a file, or one quantization of several in a repository.
    return ":" not in wanted.model and not wanted.model.endswith(".gguf")


def _models_elsewhere(wanted: Wanted, config: Mapping[str, Any]) -> Iterator[Wanted]:
    """Yield the models that a model's config names."""
    # A draft model in the speculators' format names the model to serve. vLLM loads that at the
    # revision that is set.
    named = [(_within(config, "speculators_config", "verifier", "name_or_path"), wanted.revision)]
    if config.get("model_type") == "ultravox":
        named += [(config.get(key), None) for key in ("audio_model_id", "text_model_id")]
    for name, revision in named:
        if name and isinstance(name, str):
            model = replace(wanted, model=name, revision=revision, by_name=True)
            yield model
            if model.download_dir:
                # vLLM looks only for weights there.
                yield replace(model, download_dir=None, load_format="dummy")


def _within(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _code_elsewhere(found: Found, revision: str | None) -> Iterator[Wanted]:
    """Yield the other repositories that code is loaded from."""
    for name in CONFIGS:
        # vLLM passes the revision to some of the libraries that load code, never for tokenizers.
        revisions = {None} if name.startswith("tokenizer") else dict.fromkeys((None, revision))
        for repository in sorted(code_elsewhere(disk.text(found.place / name))):
            for code_revision in revisions:
                yield Wanted(
                    repository,
                    code_revision,
                    kind=Kind.CODE,
                    code=True,
                    by_name=True,
                    setting=found.wanted.setting,
                )
