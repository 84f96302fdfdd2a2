"""Look-ups of what is to be loaded: of models while vLLM is imported, of the rest after that.

The rest are adapters, a draft model, another tokenizer; and whether they have their files.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments
from worker.engine.start.needs import found_by_store, wanted_by_settings
from worker.engine.start.repositories import places
from worker.settings.environment import process_environ
from worker.settings.sources import Given
from worker.store import ACCESS, Kind, Origin, Snapshot, Unavailable, Wanted
from worker.store.files import loadable
from worker.store.hub import locate
from worker.volume.adapters import CONFIG, WEIGHTS

# Seconds that the hub may take altogether; the import of vLLM takes about as long.
HUB_S = 8.0
# The setting of an engine's model.
_NAME = "MODEL_NAME"


class Lookups:
    """Look-ups in the background, begun with the models that the settings name.

    Attributes:
        models: those models, by the prefixes of their engines' settings.
    """

    def __init__(self, given: Given) -> None:
        # Nobody waits for its threads: the doctor ends the process.
        self._pool = ThreadPoolExecutor()
        self._pending: dict[Wanted, tuple[Future[Snapshot], float]] = {}
        self._places = places(process_environ())
        self.models = {
            wanted.setting.removesuffix(_NAME): wanted
            for wanted in wanted_by_settings(given)
            if wanted.setting.endswith(_NAME)
        }
        for model in self.models.values():
            self.begin(model)

    def begin(self, wanted: Wanted) -> None:
        """Start to look something up, unless that was started before."""
        if wanted not in self._pending:
            until = time.monotonic() + HUB_S
            self._pending[wanted] = (self._pool.submit(locate, wanted, self._places), until)

    def result(self, wanted: Wanted) -> Snapshot | Finding:
        """Wait for a look-up, and return what was found, or why it can't be had."""
        if not found_by_store(wanted):
            text = f"{wanted.model} is not looked at: it is neither a directory nor on the hub"
            return Finding(Level.UNKNOWN, "model", text)
        self.begin(wanted)
        pending, until = self._pending[wanted]
        try:
            return pending.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            text = f"the hub did not tell everything within {HUB_S:.0f} s"
            return Finding(Level.UNKNOWN, "model", text, "try again")
        except Unavailable as why:
            topic = "access" if why.reason in ACCESS else "model"
            return Finding(Level.FAIL, topic, why.problem, why.remedy)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            return Finding(Level.FAIL, "model", f"{wanted.model} can't be read: {reason}")


def check_part(wanted: Wanted, found: Snapshot | Finding, arguments: EngineArguments) -> Finding:
    """Return whether what an engine loads besides its model is there, with files of its kind."""
    topic = "draft model" if wanted.kind is Kind.MODEL else wanted.kind
    # The setting's name, or the one that the setting gives it.
    names = {module.path: module.name for module in arguments.vllm.lora_modules or ()}
    name = names.get(wanted.model, wanted.setting)
    if isinstance(found, Finding):
        return replace(found, topic=topic, text=f"{name}: {found.text}")
    if problem := _problem(wanted, found):
        text = f"{name}: {problem} in {wanted.model}"
        return Finding(Level.FAIL, topic, text, f"name another {topic}")
    where = {Origin.DIRECTORY: "is a directory", Origin.DOWNLOAD: "is on the hub"}.get(
        found.origin, f"is there (from the {found.origin})"
    )
    return Finding(Level.OK, topic, f"{name}: {wanted.model} {where}")


def _problem(wanted: Wanted, found: Snapshot) -> str:
    """Return what is wrong with the files of a part; empty if nothing is."""
    names = [file.name for file in (*found.weights, *found.others)]
    if wanted.kind is Kind.TOKENIZER:
        return "" if loadable(names, wanted) else "there are no files of a tokenizer"
    if wanted.kind is Kind.ADAPTER and CONFIG not in names:
        return f"there is no {CONFIG}"
    if wanted.kind is Kind.ADAPTER and not found.weights:
        return f"there is no {WEIGHTS}"
    return found.damaged or ("" if found.weights else "there are no weights")
