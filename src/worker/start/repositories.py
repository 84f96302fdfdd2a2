"""What engines load, found by the store and passed to vLLM as directories.

All of it is looked for, and downloaded, while vLLM is imported. vLLM itself need not ask the hub.
"""

import contextlib
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from worker.errors import SettingsError, StartFailed
from worker.phases import phase
from worker.settings import Settings
from worker.settings.environment import Choice, export, hub_cache, process_environ
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
    arguments: Namespace, found: Mapping[Wanted, Found], prefix: str = ""
) -> Iterator[Found]:
    """Replace the names of repositories in vLLM's arguments by directories; yield what was used."""
    for wanted in needed(arguments, prefix):
        if wanted in found:
            # What was found for another setting, too, may bear that one's name.
            each = replace(found[wanted], wanted=wanted)
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
        if (draft := arguments.speculative_config) and draft.get("model") == arguments.model:
            arguments.speculative_config = {**draft, "model": place}
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

    def _elsewhere(self, found: Mapping[Wanted, Found]) -> list[Wanted]:
        """Name what is referred to by what was found, and was not looked for yet."""
        named = [one for each in found.values() for one in elsewhere(each, self._given)]
        return [each for each in named if found_by_store(each) and each not in found]

    def _fetching(self, wanted: Sequence[Wanted]) -> Fetching:
        return Fetching([*dict.fromkeys(wanted)], self._places, self._environ, self._newest)
