"""Checks a training's rows before anything of the model but its tokenizer is loaded."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trainer.mistakes import BadData
from trainer.packed import TRAINING, VALIDATION, Packed
from trainer.spec import CHECKED, Checked, Exit, Spec
from worker.children import Child, module, with_sources
from worker.settings.environment import process_environ


@dataclass(frozen=True)
class Prepared:
    """The rows as tokens, and what was found in the files."""

    checked: Checked
    training: Packed
    validation: Packed


def check(spec: Spec, place: Path) -> Prepared:
    """Check a training's rows, and write them as tokens.

    Args:
        spec: the training; its paths are absolute.
        place: a directory that the tokens are written below; it may be missing.

    Raises:
        BadData: there are mistakes in the files.
        OSError: a file can't be read or written.
        RuntimeError: the process that checks has crashed; standard error says why.
    """
    with Child(
        module("trainer.checker", place.absolute()),
        environ=with_sources(process_environ()),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as checker:
        _, errors = checker.communicate(spec.model_dump_json().encode())
    sys.stderr.write(said := errors.decode(errors="replace"))
    if checker.returncode == Exit.VOLUME:
        raise OSError("The rows can't be read, or their tokens written.")
    if checker.returncode:
        reason = (said.splitlines() or [f"status {checker.returncode}"])[-1]
        raise RuntimeError(f"the check of the rows has crashed: {reason}")
    checked = Checked.model_validate_json((place / CHECKED).read_bytes())
    if checked.mistakes:
        raise BadData(checked)
    return Prepared(checked, Packed.named(place, TRAINING), Packed.named(place, VALIDATION))
