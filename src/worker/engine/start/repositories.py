"""Finds or downloads what engines load, from before vLLM is imported: vLLM need not ask the hub."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.engine.start.needs import asks_hub, elsewhere, found_by_store, wanted_by_settings
from worker.errors import StartFailed
from worker.process.phases import phase
from worker.settings.environment import HUB_TOKEN, export, hub_cache, process_environ, remove
from worker.settings.sources import BAKED, Given
from worker.settings.values import says
from worker.store import Found, Places, Wanted
from worker.store.fetching import Fetching
from worker.store.places import baked_models

log = logging.getLogger("worker")

# Options that name what is loaded besides the model and its tokenizer.
_FURTHER = {"LORA_MODULES", "SPECULATIVE_CONFIG", "SC"}


def places(environ: Mapping[str, str]) -> Places:
    """Return where models may be, once the environment is complete."""
    return Places(hub_cache(environ), baked=baked_models(BAKED))


class Repositories:
    """Finds or downloads everything that a worker's engines load, from the moment it is made."""

    def __init__(self, given: Given, newest: bool = False) -> None:
        """Begin with what the settings name.

        ``newest``: ask the hub whether what is on the volume is its newest state.
        """
        self._given = given
        self._newest = newest
        # Before variables are written that are for this process only.
        self._environ = dict(process_environ())
        self._places = places(self._environ)
        named = wanted_by_settings(given)
        self._named = [wanted for wanted in named if found_by_store(wanted)]
        self._left_to_vllm = [wanted for wanted in named if not found_by_store(wanted)]
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
        if self._named and not self._left_to_vllm and not asks_hub(self._given):
            export({"HF_HUB_OFFLINE": "1"})
            if says(process_environ().get("HF_HUB_OFFLINE"), True):
                # Before there is an engine, which would have it, too.
                remove(HUB_TOKEN)

    def prefetch(self) -> list[Found]:
        """Wait for everything that the settings name.

        Raises:
            Unavailable: something can't be found or downloaded.
            StartFailed: nothing is named, or something that only vLLM finds.
        """
        if self._left_to_vllm or not self._named or _FURTHER & self._given.from_extra.keys():
            names = ", ".join(map(str, self._left_to_vllm)) or "what VLLM_EXTRA_ARGS names"
            raise StartFailed(f"Only vLLM itself can find {names}: nothing is downloaded.")
        return [*self.result().values()]

    def find(self, wanted: Sequence[Wanted]) -> dict[Wanted, Found]:
        """Wait for what engines load, and log where it is.

        Raises:
            Unavailable: something can't be found or downloaded.
            StartFailed: a download ended before it was complete.
        """
        with phase("fetch"):
            found = self.result(wanted)
            for one in wanted:
                if one in found:
                    # It may have been found for another setting, too: this one's is reported.
                    log.info("found: %s", replace(found[one], wanted=one))
        return found

    def result(self, further: Sequence[Wanted] = ()) -> dict[Wanted, Found]:
        """Wait for everything that the settings name, for ``further``, and what their configs name.

        Raises:
            Unavailable: something can't be found or downloaded.
            StartFailed: a download ended before it was complete.
        """
        found = self._first.result()
        while more := self._lacking(found, further):
            found |= self._fetching(more).result()
        return found

    def _lacking(self, found: Mapping[Wanted, Found], further: Sequence[Wanted]) -> list[Wanted]:
        """Return what was not looked for yet, of ``further`` and of what found configs name."""
        named = [one for place in found.values() for one in elsewhere(self._given, place)]
        return [one for one in (*further, *named) if found_by_store(one) and one not in found]

    def _fetching(self, wanted: Sequence[Wanted]) -> Fetching:
        return Fetching([*dict.fromkeys(wanted)], self._places, self._environ, self._newest)
