"""Finds or downloads what engines load, and passes it to vLLM as directories.

This begins before vLLM is imported and goes on meanwhile. vLLM itself need not ask the hub.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.start.bootstrap import Bootstrap
from worker.engine.start.needs import (
    asks_hub,
    elsewhere,
    found_by_store,
    names_further,
    wanted_by_arguments,
    wanted_by_settings,
)
from worker.errors import StartFailed
from worker.phases import phase
from worker.settings.environment import HUB_TOKEN, export, hub_cache, process_environ, remove
from worker.settings.sources import BAKED
from worker.settings.values import says
from worker.store import Found, Kind, Origin, Places, Wanted
from worker.store.fetching import Fetching
from worker.store.places import baked_models

log = logging.getLogger("worker")

# For libraries, once everything is found: the hub is not asked for anything else.
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


def with_directories(arguments: EngineArguments, context: StartContext) -> EngineArguments:
    """Replace the names of repositories in an engine's arguments by directories."""
    for wanted in wanted_by_arguments(arguments):
        found = context.found.get(wanted)
        if found and found.origin is not Origin.DIRECTORY:
            # It may have been found for another setting, too.
            arguments = _put(arguments, replace(found, wanted=wanted))
    return arguments


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
    """Return an entry of LORA_MODULES with the path replaced, if it has this one."""
    if module.path != path:
        return module
    moved = copy.copy(module)
    moved.path = place
    return moved


def places(environ: Mapping[str, str]) -> Places:
    """Return where models may be, once the environment is complete."""
    return Places(hub_cache(environ), baked=baked_models(BAKED))


class Repositories:
    """Finds or downloads everything that a worker's engines load, from the moment it is made."""

    def __init__(self, bootstrap: Bootstrap, newest: bool = False) -> None:
        """Begin with what the settings name.

        Args:
            bootstrap: the settings. Without a model's name in them, nothing is looked for yet.
            newest: ask the hub whether what is on the volume is its newest state.
        """
        self._given = bootstrap.given
        self._newest = newest
        # Before variables are written that are for this process only.
        self._environ = dict(process_environ())
        self._places = places(self._environ)
        named = wanted_by_settings(self._given) if bootstrap.settings else []
        self._named = [wanted for wanted in named if found_by_store(wanted)]
        self._first = self._fetching(self._named)

    @property
    def on_disk(self) -> list[Found]:
        """What the settings name and is on the disk; nothing while something is downloaded."""
        return self._first.on_disk

    def close(self) -> None:
        """Stop a download that is still running."""
        self._first.close()

    def go_offline(self) -> None:
        """Keep libraries from asking the hub, if the store finds everything that is named."""
        complete = not self._left_to_vllm()
        if self._named and complete and not asks_hub(self._given):
            export(_OFFLINE)
            if says(process_environ().get("HF_HUB_OFFLINE"), True):
                # Before there is an engine, which would have it, too.
                remove(HUB_TOKEN)

    def prefetch(self) -> list[Found]:
        """Wait for everything that the settings name.

        Raises:
            Unavailable: something can't be found or downloaded.
            StartFailed: nothing is named, or something that only vLLM finds.
        """
        left = self._left_to_vllm()
        if left or not self._named or names_further(self._given):
            names = ", ".join(map(str, left)) or "what VLLM_EXTRA_ARGS names"
            raise StartFailed(f"Only vLLM itself can find {names}: nothing is downloaded.")
        return [*self.result().values()]

    def result(self, further: Sequence[Wanted] = ()) -> dict[Wanted, Found]:
        """Wait for everything that the settings name, and for what their configs name.

        Args:
            further: what else to find.

        Raises:
            Unavailable: something can't be found or downloaded.
            StartFailed: a download ended before it was complete.
        """
        found = self._first.result()
        more = [wanted for wanted in further if found_by_store(wanted) and wanted not in found]
        found |= self._fetching(more).result()
        while more := self._elsewhere(found):
            found |= self._fetching(more).result()
        return found

    def find(self, engines: Sequence[EngineArguments]) -> dict[Wanted, Found]:
        """Wait for what engines load.

        Raises:
            Unavailable: something can't be found or downloaded.
            StartFailed: a download ended before it was complete.
        """
        with phase("fetch"):
            wanted = [one for arguments in engines for one in wanted_by_arguments(arguments)]
            found = self.result(wanted)
            for one in wanted:
                if one in found:
                    # It may have been found for another setting, too: this one's is reported.
                    log.info("found: %s", replace(found[one], wanted=one))
        return found

    def _left_to_vllm(self) -> list[Wanted]:
        return [wanted for wanted in wanted_by_settings(self._given) if not found_by_store(wanted)]

    def _elsewhere(self, found: Mapping[Wanted, Found]) -> list[Wanted]:
        """Return what the configs in ``found`` name and was not looked for yet."""
        named = [one for place in found.values() for one in elsewhere(place, self._given)]
        return [wanted for wanted in named if found_by_store(wanted) and wanted not in found]

    def _fetching(self, wanted: Sequence[Wanted]) -> Fetching:
        return Fetching([*dict.fromkeys(wanted)], self._places, self._environ, self._newest)
