"""A program that replaces the trainer, and follows the fine-tune's ``script.json``.

The file has a list of operations for each attempt: ``[["step", 5], ...]``. Further attempts repeat
the last list.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

STOPPED = 75
# Marks attempts that only check the file.
ONLY_CHECKED = "only.checked"


class Trainer:
    """One attempt."""

    def __init__(self, directory: Path, name: str) -> None:
        self.attempt = directory / "attempts" / name
        self.step = 0
        self.checked: dict[str, Any] = {}
        checkpoints = directory.glob("attempts/*/checkpoints/checkpoint-*")
        self.resumed_at = max((int(path.name.split("-")[1]) for path in checkpoints), default=0)

    def write_event(self, line: dict[str, Any]) -> None:
        with (self.attempt / "events.jsonl").open("a") as opened:
            opened.write(json.dumps(line) + "\n")

    def do_step(self, step: int) -> None:
        """Write the loss of a step."""
        self.step = step
        metrics = {"loss": 1 / step, "epoch": step / 10}
        self.write_event(
            {"at": time.time(), "message": str(metrics), "step": step, "metrics": metrics}
        )

    def do_checkpoint(self, step: int) -> None:
        (self.attempt / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)

    def do_checked(self, **result: Any) -> None:
        self.checked = result
        self._write_outcome(check=result)

    def do_epoch(self, step: int) -> None:
        self._adapter(self.attempt / "epochs" / str(step), f"epoch {step}")

    def _write_outcome(self, **outcome: Any) -> None:
        whole = self.attempt / "outcome.whole"
        whole.write_text(json.dumps(outcome))
        whole.rename(self.attempt / "outcome.json")

    def do_over(self, **outcome: Any) -> None:
        """Exit successfully, unless the outcome has an error."""
        result = {"is_over": True, "steps": self.step, "best_step": self.step, **outcome}
        self._write_outcome(check=self.checked, **result)
        os._exit(0)

    def do_say(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def do_exit(self, status: int) -> None:
        os._exit(status)

    def do_kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_wait(self) -> None:
        """Train until the parent process requests a stop, then write a checkpoint."""
        while True:
            time.sleep(3600)

    def do_deaf(self) -> None:
        """From now on, only create a file when the parent process requests a stop."""
        heard = self.attempt / "heard"
        signal.signal(signal.SIGTERM, lambda *_: heard.touch())

    def stop(self, _: int, __: FrameType | None) -> None:
        self.do_checkpoint(self.step)
        os._exit(STOPPED)

    def _adapter(self, place: Path, text: str) -> None:
        place.mkdir(parents=True)
        (place / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "/m/x"}')
        (place / "adapter_model.safetensors").write_text(text)


def main() -> None:
    directory, name = Path(sys.argv[1]), sys.argv[2]
    scripts = json.loads((directory / "script.json").read_text())
    trainer = Trainer(directory, name)
    if sys.argv[3:] == ["--check"]:
        only_check(trainer)
    signal.signal(signal.SIGTERM, trainer.stop)
    attempts = (directory / "attempts").iterdir()
    number = sum(not (place / ONLY_CHECKED).exists() for place in attempts)
    (directory / "pids").open("a").write(f"{os.getpid()}\n")
    trainer.write_event({"resumed_at": trainer.resumed_at})
    for op, *arguments in scripts[min(number, len(scripts)) - 1]:
        play: Callable[..., None] = getattr(trainer, f"do_{op}")
        if arguments and isinstance(arguments[0], dict):
            play(**arguments[0])
        else:
            play(*arguments)


def only_check(trainer: Trainer) -> None:
    """Report the mistakes that the first attempt would find."""
    (trainer.attempt / ONLY_CHECKED).touch()
    scripts = json.loads((trainer.attempt.parents[1] / "script.json").read_text())
    results = [values for op, *rest in scripts[0] if op == "checked" for values in rest]
    checked: dict[str, Any] = results[0] if results else {}
    trainer.do_checked(**checked)
    if checked.get("mistakes"):
        trainer.do_over(error="The file has 1 mistake.")
    os._exit(0)


if __name__ == "__main__":
    main()
