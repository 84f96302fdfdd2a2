"""Workers that are killed: what is left of their processes, and how long."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from support.processes.background import HUNG_S, Background

ROWS = [{"messages": [{"role": role, "content": "Hi"} for role in ("user", "assistant")]}] * 2_000
# Parts of the commands of a worker's processes.
READERS = ("logs/reader.py objects", "logs/reader.py errors")
GRAMMAR = "worker.engine.run.grammar.process"
DOWNLOAD = "worker.store.download"
TRAINER = "-m trainer"
CORE = "VLLM::EngineCore"


def begin_training(url: str) -> None:
    """Let a worker that serves HTTP begin a fine-tune that takes long."""
    rows = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    with httpx.Client(base_url=f"{url}/v1", timeout=HUNG_S) as client:
        files, data = {"file": ("rows.jsonl", rows)}, {"purpose": "fine-tune"}
        file = client.post("/files", files=files, data=data).raise_for_status().json()["id"]
        supervised = {"hyperparameters": {"n_epochs": 19}}
        body = {
            "model": "demo",
            "training_file": file,
            "method": {"type": "supervised", "supervised": supervised},
        }
        begun = client.post("/fine_tuning/jobs", json=body)
        assert begun.is_success, begun.text


def training_worker(model: str | Path, volume: Path) -> dict[str, str]:
    """Return the variables of a worker that has every kind of child."""
    return {
        "MODEL_NAME": str(model),
        "SERVED_MODEL_NAME": "demo",
        "BASE_PATH": str(volume),
        "ENABLE_LORA": "1",
        "MAX_LORA_RANK": "16",
        "LOG_FORMAT": "json",
    }


@dataclass
class Family:
    """A worker's main process and all below it, with their commands."""

    main: psutil.Process
    commands: dict[psutil.Process, str] = field(default_factory=dict)
    _sessions: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, worker: Background) -> "Family":
        found = cls(psutil.Process(worker.process.pid))
        for process in (found.main, *found.main.children(recursive=True)):
            # It may have just ended.
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                found.commands[process] = " ".join(process.cmdline())
                found._sessions.add(os.getsid(process.pid))
        return found

    def has(self, *parts: str) -> bool:
        """Return whether every part is in a command."""
        return all(any(part in command for command in self.commands.values()) for part in parts)

    def alive(self) -> list[str]:
        """Return the commands of those that have not ended; of others in their sessions, too."""
        left = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                ours = process in self.commands or os.getsid(process.pid) in self._sessions
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline()))
        return left


def kill(worker: Background) -> Family:
    """Kill a worker's main process; return what it had."""
    with suppress(psutil.NoSuchProcess):
        # It starts nothing more that is not seen.
        psutil.Process(worker.process.pid).suspend()
    family = Family.of(worker)
    family.main.kill()
    return family


def seconds_until_gone(family: Family, most: float) -> tuple[float, list[str]]:
    """Wait until nothing is left; return the seconds, and what is left after so many."""
    begun = time.monotonic()
    while (left := family.alive()) and time.monotonic() - begun < most:
        time.sleep(0.01)
    return time.monotonic() - begun, left
