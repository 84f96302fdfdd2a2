"""What engines load: named by the settings, found by the store, and passed to vLLM as directories.

All of it is looked for, and downloaded, while vLLM is imported. vLLM itself need not ask the hub.
"""

import contextlib
import json
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker.errors import SettingsError, StartFailed
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import Choice, export, hub_cache, is_set, process_environ
from worker.settings.names import EMBEDDER
from worker.settings.sources import BAKED, Given
from worker.settings.values import adapters, says
from worker.store import Found, Kind, Origin, Places, Wanted
from worker.store.baked import baked_models
from worker.store.disk import text
from worker.store.fetching import Fetching
from worker.store.files import CONFIGS, code_elsewhere, json_object

log = logging.getLogger("worker")

# Without these it is not clear which model is meant, or where it lies.
LOCATING = ("MODEL_NAME", "BASE_PATH", "HF_TOKEN", "COMPILE_CACHE")
# Where they stand among the extra arguments, vLLM's parser is to say first what is meant.
_NAMING = ("--model", "--revision", "--tokenizer", "--load-format", "--download-dir")
# Nothing is asked of the hub any more, once all is there.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def named(given: Given) -> list[Wanted]:
    """Name what the settings name, before vLLM has read them."""
    if any(word.startswith(_NAMING) for word in given.extra):
        return []
    return [*_named(given, ""), *_named(given, EMBEDDER)]


def _named(given: Given, prefix: str) -> Iterator[Wanted]:
    options = given.options(prefix)
    if not options.get("MODEL"):
        return
    draft = json_object(options.get("SPECULATIVE_CONFIG", ""))
    folder = options.get("DOWNLOAD_DIR")
    yield from _of_engine(
        prefix,
        Wanted(
            options["MODEL"],
            options.get("REVISION"),
            options.get("LOAD_FORMAT", "auto"),
            Path(folder) if folder else None,
            code=says(options.get("TRUST_REMOTE_CODE"), True),
        ),
        (options.get("TOKENIZER"), options.get("TOKENIZER_REVISION")),
        [*_adapters(options.get("LORA_MODULES", ""))],
        (draft.get("model"), draft.get("revision")),
    )


def _adapters(written: str) -> Iterator[str]:
    """Name the adapters' paths; what is written wrong, vLLM's parser will tell."""
    with contextlib.suppress(ValueError):
        for each in adapters(written) if written else ():
            path = json.loads(each).get("path") if each.startswith("{") else each.partition("=")[2]
            if path:
                yield str(path)


def needed(arguments: Namespace, prefix: str = "") -> list[Wanted]:
    """Name what an engine loads: its model first, then its tokenizer, adapters, and draft model.

    Args:
        arguments: vLLM's.
        prefix: of the engine's settings.
    """
    draft = arguments.speculative_config or {}
    tokenizer = None if arguments.skip_tokenizer_init else arguments.tokenizer
    folder = arguments.download_dir
    model = Wanted(
        arguments.model,
        arguments.revision,
        arguments.load_format,
        Path(folder) if folder else None,
        code=arguments.trust_remote_code,
    )
    paths = [module.path for module in arguments.lora_modules or ()]
    drafted = draft.get("model"), draft.get("revision")
    tokenized = tokenizer, arguments.tokenizer_revision
    return [*_of_engine(prefix, model, tokenized, paths, drafted)]


_Named = tuple[str | None, str | None]


def _of_engine(
    prefix: str, model: Wanted, tokenizer: _Named, paths: Sequence[str], draft: _Named
) -> Iterator[Wanted]:
    """Complete what is said of an engine's model by what is loaded beside it."""
    yield replace(model, setting=f"{prefix}MODEL_NAME")
    if tokenizer[0] not in {None, model.model}:
        yield replace(
            model,
            model=str(tokenizer[0]),
            # As vLLM, which takes the model's revision where the tokenizer has none of its own.
            revision=tokenizer[1] or model.revision,
            load_format="dummy",
            kind=Kind.TOKENIZER,
            setting=f"{prefix}TOKENIZER_NAME",
        )
    for path in paths:
        yield Wanted(path, kind=Kind.ADAPTER, setting=f"{prefix}LORA_MODULES")
    if draft[0] not in {None, model.model}:
        setting = f"{prefix}SPECULATIVE_CONFIG"
        yield replace(model, model=str(draft[0]), revision=draft[1], setting=setting)


def found_by_store(wanted: Wanted) -> bool:
    """Tell whether the store knows how to find something: else, vLLM does."""
    if is_set("VLLM_USE_MODELSCOPE"):
        return False
    # Object storage, a file, or a quantization in a repository of several.
    return ":" not in wanted.model and not wanted.model.endswith(".gguf")


def _code_elsewhere(found: Found) -> Iterator[Wanted]:
    """Name the repositories that code comes from, beside the one that was found."""
    if not found.wanted.code:
        return
    for name in CONFIGS:
        for repository in sorted(code_elsewhere(text(found.place / name))):
            yield Wanted(repository, kind=Kind.CODE, code=True, setting=found.wanted.setting)


def placed(
    arguments: Namespace, found: Mapping[Wanted, Found], prefix: str = ""
) -> Iterator[Found]:
    """Replace the names of repositories in vLLM's arguments by directories; yield what was used."""
    for wanted in needed(arguments, prefix):
        if each := found.get(wanted):
            yield each
            if each.origin is not Origin.DIRECTORY:
                _put(arguments, each)


def _put(arguments: Namespace, found: Found) -> None:
    wanted, place = found.wanted, str(found.place)
    if wanted.kind is Kind.ADAPTER:
        for module in arguments.lora_modules:
            if module.path == wanted.model:
                module.path = place
    elif wanted.kind is Kind.TOKENIZER:
        arguments.tokenizer = place
    elif wanted.setting.endswith("SPECULATIVE_CONFIG"):
        arguments.speculative_config = {**arguments.speculative_config, "model": place}
    else:
        if arguments.tokenizer == arguments.model:
            arguments.tokenizer = place
        arguments.model, arguments.origin, arguments.commit = place, found.origin, found.commit


def places(environ: Mapping[str, str]) -> Places:
    """Return where models may lie, once the environment is complete."""
    return Places(hub_cache(environ), baked=baked_models(BAKED))


class Repositories:
    """Everything that a worker's engines load, looked for from the moment that this is made.

    ``settings`` are those that say where things lie, ``chosen`` what was chosen in their place.

    Args:
        given: the settings; if they don't say where anything lies, nothing is looked for yet.
        newest: the hub is asked whether what is on the volume is still the newest.
    """

    def __init__(self, given: Given, newest: bool = False) -> None:
        values = {name: given.values[name] for name in LOCATING if name in given.values}
        self.settings: Settings | None = None
        self.chosen: list[Choice] = []
        wanted: list[Wanted] = []
        with contextlib.suppress(SettingsError):
            self.settings = Settings.from_env(values)
            self.chosen = self.settings.export()
            wanted = [each for each in named(given) if found_by_store(each)]
        # Before anything is written there that is for this process only.
        self._environ = dict(process_environ())
        self._places = places(self._environ)
        self._given = given
        self._newest = newest
        self._wanted = wanted
        self._first = self._fetching(wanted)

    def close(self) -> None:
        """End what is still going on."""
        self._first.close()

    def go_offline(self) -> None:
        """Keep what is below from asking the hub, if the store finds all that is named."""
        ours = all(map(found_by_store, named(self._given)))
        if self._wanted and ours and "HF_CONFIG_PATH" not in self._given.values:
            export(_OFFLINE)

    def fetched(self) -> list[Found]:
        """Wait for everything that the settings name.

        Raises:
            Unavailable: something can't be had.
            StartFailed: nothing is named, or what is named the store does not find.
        """
        left = [each for each in named(self._given) if not found_by_store(each)]
        if left or not self._wanted:
            told = ", ".join(map(str, left)) or "what VLLM_EXTRA_ARGS names"
            raise StartFailed(f"Only vLLM itself can find {told}: nothing is downloaded.")
        return [*self.found().values()]

    def found(self, wanted: Sequence[Wanted] = ()) -> dict[Wanted, Found]:
        """Wait for everything that the settings name, and for what else is wanted.

        Raises:
            Unavailable: something can't be had.
            StartFailed: a download ended before it was done.
        """
        found = self._first.result()
        rest = [each for each in wanted if found_by_store(each) and each not in found]
        found |= self._fetching(rest).result()
        # Where it lies the libraries know themselves.
        code = [one for each in found.values() for one in _code_elsewhere(each)]
        return found | self._fetching(code).result()

    def place(self, engines: Mapping[str, Namespace | None]) -> None:
        """Wait for what engines load, and tell vLLM where it lies.

        Args:
            engines: vLLM's arguments, by the prefix of the engine's settings.

        Raises:
            Unavailable: something can't be had.
            StartFailed: a download ended before it was done.
        """
        with phase("fetch"):
            there = {prefix: each for prefix, each in engines.items() if each}
            found = self.found([one for at, each in there.items() for one in needed(each, at)])
            for prefix, arguments in there.items():
                for each in placed(arguments, found, prefix):
                    log.info("found: %s", each)

    def _fetching(self, wanted: Sequence[Wanted]) -> Fetching:
        return Fetching([*dict.fromkeys(wanted)], self._places, self._environ, self._newest)
