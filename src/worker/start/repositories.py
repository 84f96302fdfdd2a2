"""What engines load, found by the store and passed to vLLM as directories.

All of it is looked for, and downloaded, while vLLM is imported. vLLM itself need not ask the hub.
"""

import contextlib
import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.errors import SettingsError, StartFailed
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import Default, export, hub_cache, process_environ
from worker.settings.sources import BAKED, Given
from worker.start.needs import asks_hub, elsewhere, found_by_store, named, named_beside, needed
from worker.store import Found, Kind, Origin, Places, Wanted
from worker.store.fetching import Fetching
from worker.store.places import baked_models

log = logging.getLogger("worker")

# Without these it is not clear which model is meant, or where it lies.
LOCATING = ("MODEL_NAME", "BASE_PATH", "HF_TOKEN", "COMPILE_CACHE")
# Nothing is asked of the hub any more, once all is there.
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


def placed(
    arguments: EngineArguments, found: Mapping[Wanted, Found]
) -> tuple[EngineArguments, list[Found]]:
    """Replace the names of repositories in vLLM's arguments by directories.

    Returns:
        The arguments with directories, and what of the found is used in them.
    """
    used = []
    # What was found for another setting, too, may bear that one's name.
    for wanted in needed(arguments):
        if wanted in found:
            each = replace(found[wanted], wanted=wanted)
            used.append(each)
            if each.origin is not Origin.DIRECTORY:
                arguments = _put(arguments, each)
    return arguments, used


def _put(arguments: EngineArguments, found: Found) -> EngineArguments:
    options, wanted, place = arguments.vllm, found.wanted, str(found.place)
    draft = options.speculative_config
    if wanted.kind is Kind.ADAPTER:
        modules = [_moved(module, wanted.model, place) for module in options.lora_modules]
        return arguments.with_options(lora_modules=modules)
    if wanted.kind is Kind.TOKENIZER:
        return arguments.with_options(tokenizer=place)
    if wanted.setting.endswith("SPECULATIVE_CONFIG"):
        return arguments.with_options(speculative_config={**draft, "model": place})
    changed: dict[str, Any] = {"model": place}
    if options.tokenizer == options.model:
        changed["tokenizer"] = place
    if draft and draft.get("model") == options.model:
        changed["speculative_config"] = {**draft, "model": place}
    return replace(arguments.with_options(**changed), origin=found.origin, commit=found.commit)


def _moved(module: Any, path: str, place: str) -> Any:
    """Return vLLM's description of an adapter with its directory in place of its name."""
    if module.path != path:
        return module
    moved = copy.copy(module)
    moved.path = place
    return moved


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
        self.chosen: list[Default] = []
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
        if self._wanted and ours and not asks_hub(self._given):
            export(_OFFLINE)

    def fetched(self) -> list[Found]:
        """Wait for everything that the settings name.

        Raises:
            Unavailable: something can't be had.
            StartFailed: nothing is named, or what is named the store does not find.
        """
        left = [each for each in named(self._given) if not found_by_store(each)]
        if left or not self._wanted or named_beside(self._given):
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
        more = [each for each in wanted if found_by_store(each) and each not in found]
        found |= self._fetching(more).result()
        while more := self._elsewhere(found):
            found |= self._fetching(more).result()
        return found

    def place(self, engines: Sequence[EngineArguments]) -> tuple[EngineArguments, ...]:
        """Wait for what engines load, and return their arguments with the directories in them.

        Raises:
            Unavailable: something can't be had.
            StartFailed: a download ended before it was done.
        """
        with phase("fetch"):
            found = self.found([one for engine in engines for one in needed(engine)])
            complete = []
            for engine in engines:
                arguments, used = placed(engine, found)
                complete.append(arguments)
                for each in used:
                    log.info("found: %s", each)
        return tuple(complete)

    def _elsewhere(self, found: Mapping[Wanted, Found]) -> list[Wanted]:
        """Name what is referred to by what was found, and was not looked for yet."""
        named = [one for each in found.values() for one in elsewhere(each, self._given)]
        return [each for each in named if found_by_store(each) and each not in found]

    def _fetching(self, wanted: Sequence[Wanted]) -> Fetching:
        return Fetching([*dict.fromkeys(wanted)], self._places, self._environ, self._newest)
