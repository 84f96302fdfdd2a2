"""Draws cases, tries each of them, and judges whether doctor, start and waiting job agree."""

import json
import shutil
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from support.processes.commands import HOME

from fuzz.starts import trials
from fuzz.starts.draft import MODEL, OPTIONS, Bases, Draft
from fuzz.starts.kinds import KILLED, KINDS
from fuzz.starts.trials import Verdict

# The faults, by the names under which the summary counts them. The first three are the promise.
WOULD_START = "the doctor says that the worker would start, and the start fails"
REFUSED = "the doctor refuses, and the start works"
LEFT = "a job is left waiting for a model that no worker can load"
MESSAGE = "callers or the doctor get a wrong message"
COMMANDS = "the commands give another verdict than the forks"
FAULTS = (WOULD_START, REFUSED, LEFT, MESSAGE, COMMANDS)
# Share of the cases that are also run by the real commands.
BY_COMMANDS = 1 / 20


@dataclass(frozen=True)
class Case:
    """A drawn directory and settings.

    Attributes:
        kind: A key of ``KINDS``.
        settings: The worker's settings; ``MODEL_NAME`` is a directory in the case's folder.
        notes: Descriptions of the choices that were drawn.
        killed_after_s: Seconds from the appearance of the core until it is killed; None otherwise.
    """

    kind: str
    settings: dict[str, str]
    notes: list[str]
    killed_after_s: float | None = None


@dataclass
class Result:
    """The verdicts on a case, and the faults, by their names in ``FAULTS``."""

    number: int
    case: Case
    doctor: Verdict
    start: Verdict
    faults: dict[str, str] = field(default_factory=dict)
    by_commands: bool = False


@dataclass(frozen=True)
class Run:
    """One run of the draw: the seed, and the folder of all files."""

    seed: int
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """The variables of all cases, as far as libraries read them on import."""
        home = str(self.folder / "home")
        return {**HOME, "HOME": home, "HF_HOME": home, "HF_HUB_OFFLINE": "1"}

    def try_case(self, number: int) -> Result:
        """Draw a case and try it; the same seed and number draw the same one."""
        rng = Random(f"{self.seed} {number}")
        names = [*KINDS]
        kind = rng.choices(names, [weight for _, weight in KINDS.values()])[0]
        by_commands = rng.random() < BY_COMMANDS
        folder = self.folder / f"case-{number}"
        folder.mkdir()
        try:
            return self._try(number, kind, rng, folder, by_commands)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _try(self, number: int, kind: str, rng: Random, folder: Path, by_commands: bool) -> Result:
        models = folder / "models"
        models.mkdir()
        # The draw runs in a fork, because building models changes classes of transformers.
        draw = partial(_draw, kind, rng, Bases(self.folder / "bases"), models)
        drawn = trials.run_in_fork(draw, self.environ, folder / "draw")
        if not drawn.works:
            raise RuntimeError(f"case {number} ({kind}) can't be drawn: {drawn.message}")
        case = Case(**json.loads(drawn.message))
        environ = {**self.environ, "TMPDIR": str(folder), **case.settings}
        doctor = trials.run_doctor(environ, folder)
        start = trials.run_start(environ, folder, case.killed_after_s)
        result = Result(number, case, doctor, start, by_commands=by_commands)
        result.faults |= _judge(case, doctor, start, models)
        if by_commands:
            checked = trials.check_by_command(environ, folder)
            started = trials.start_by_command(environ, folder, case.killed_after_s)
            if difference := _compare(case, (doctor, start), (checked, started)):
                result.faults[COMMANDS] = difference
        return result


def _draw(kind: str, rng: Random, bases: Bases, folder: Path, _: Path) -> Verdict:
    draft = Draft(bases, folder, rng)
    KINDS[kind][0](draft)
    if kind not in ("options", KILLED) and rng.random() < 0.1:
        draft.set_option()
    killed_after_s = rng.uniform(0, 2) if kind == KILLED else None
    case = Case(kind, draft.settings, draft.notes, killed_after_s)
    return Verdict(True, json.dumps(asdict(case)))


def _judge(case: Case, doctor: Verdict, start: Verdict, folder: Path) -> dict[str, str]:
    """Return the faults of a case, by their names."""
    faults = dict[str, str]()
    if doctor.message.startswith((trials.CRASHES, trials.HANGS)):
        faults[MESSAGE] = f"the doctor: {doctor.message[-600:]}"
    if case.killed_after_s is not None:
        if start.callers_message:
            faults[MESSAGE] = f"callers get the error of one machine: {start.callers_message}"
        return faults
    if doctor.works and not start.works:
        faults[WOULD_START] = _both(doctor, start)
    if start.works and not doctor.works:
        faults[REFUSED] = _both(doctor, start)
    if not start.works and not start.callers_message:
        faults[LEFT] = _both(doctor, start)
    if wrong := _find_wrong_message(case, doctor, start, folder):
        faults[MESSAGE] = wrong
    return faults


def _find_wrong_message(case: Case, doctor: Verdict, start: Verdict, folder: Path) -> str:
    message = start.callers_message
    if str(folder) in message:
        return f"callers get a path: {message[:400]}"
    # Messages about a repository have its name, those about a directory the setting's.
    words = {MODEL, *case.settings, *case.settings.values()}
    if message and not any(word in message for word in words):
        return f"callers get no setting: {message[:400]}"
    named = {name for name in case.settings.keys() & OPTIONS.keys() if name in message}
    is_other = not doctor.works and named and not any(name in doctor.message for name in named)
    return f"the doctor names other settings: {_both(doctor, start)}" if is_other else ""


def _both(doctor: Verdict, start: Verdict) -> str:
    printed = doctor.message
    # The failures that the doctor has printed, or its conclusion.
    found = [part[:300] for part in printed.split("FAIL ")[1:]]
    conclusion = printed[printed.find("The worker would ") :]
    text = f"doctor: {' | '.join(found) or conclusion[-300:]}"
    return text if start.works else f"start: {_shorten(start.message)}\n    {text}"


def _shorten(message: str) -> str:
    """Return the beginning of a message, or the last line of a traceback."""
    lines = message.strip().splitlines() or [""]
    return message[:500] if len(lines) == 1 else f"{lines[0][:60]} … {lines[-1][:400]}"


def _compare(
    case: Case, forks: tuple[Verdict, Verdict], by_commands: tuple[Verdict, Verdict]
) -> str:
    """Return the difference between the verdicts of forks and of commands; blank without one."""
    for name, fork, command in zip(("doctor", "start"), forks, by_commands, strict=True):
        # Whether a core is killed before or after its start depends on the machine.
        is_killed = case.killed_after_s is not None and name == "start"
        same = fork.works == command.works or is_killed
        if not same or bool(fork.callers_message) != bool(command.callers_message):
            texts = [f"{verdict.works} {verdict.message[-400:]}" for verdict in (fork, command)]
            return f"{name}: fork: {texts[0]}\n    command: {texts[1]}"
    return ""
