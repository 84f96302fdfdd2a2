"""What is to be loaded, looked up: the models while vLLM is being imported, the rest after it."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments
from worker.settings.environment import process_environ
from worker.settings.sources import Given
from worker.start.needs import found_by_store, wanted_by_arguments, wanted_by_settings
from worker.start.repositories import places
from worker.store import Kind, Reason, Snapshot, Unavailable, Wanted
from worker.store.hub import locate

# How long the hub may take altogether. The import of vLLM takes about as long.
HUB_S = 8.0
# Why a model can't be had, where it is a matter of who may have it.
_ACCESS = frozenset(
    {Reason.TOKEN_MISSING, Reason.NO_ACCESS, Reason.BAD_TOKEN, Reason.ODD_TOKEN},
)


class Asked:
    """What is being looked up, beginning with the models that the settings name."""

    def __init__(self, given: Given) -> None:
        # Its threads are not waited for: whoever asked ends the process.
        self._pool = ThreadPoolExecutor()
        self._pending: dict[Wanted, tuple[Future[Snapshot], float]] = {}
        self._places = places(process_environ())
        self._models = {
            each.setting: each for each in wanted_by_settings(given) if each.kind is Kind.MODEL
        }
        for wanted in self._models.values():
            self.begin(wanted)

    def begin(self, wanted: Wanted) -> None:
        """Look something up in the background, once."""
        if wanted not in self._pending:
            until = time.monotonic() + HUB_S
            self._pending[wanted] = (self._pool.submit(locate, wanted, self._places), until)

    def model(self, prefix: str, arguments: EngineArguments | None) -> Snapshot | Finding | None:
        """Return an engine's model, or why there is none; nothing, if none is meant.

        Args:
            prefix: of the engine's settings.
            arguments: vLLM's, which may be of another model than the variables name; None, if
                they can't be made.
        """
        meant = self._models.get(f"{prefix}MODEL_NAME")
        wanted = meant if arguments is None else wanted_by_arguments(arguments)[0]
        return None if wanted is None else self.result(wanted)

    def result(self, wanted: Wanted) -> Snapshot | Finding:
        """Return what was looked up, or why it can't be had."""
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
            return _unavailable(why)
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or type(error).__name__
            return Finding(Level.FAIL, "model", f"{wanted.model} can't be read: {told}")


def _unavailable(why: Unavailable) -> Finding:
    topic = "access" if why.reason in _ACCESS else "model"
    return Finding(Level.FAIL, topic, why.problem, why.remedy)
