"""Killed workers: which of their processes remain, and for how long."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from support.processes.background import HUNG_S, BackgroundProcess

ROWS = [{"messages": [{"role": role, "content": "Hi"} for role in ("user", "assistant")]}] * 2_000
# Parts of the command lines of a worker's processes.
READERS = ("logs/reader.py objects", "logs/reader.py errors")
GRAMMAR = "worker.engine.run.grammar.process"
DOWNLOAD = "worker.store.download"
TRAINER = "-m trainer"
CORE = "VLLM::EngineCore"


def complete_with_grammar(url: str) -> None:
    """Request a completion from a worker that serves HTTP, whose grammar is compiled on trial."""
    body = {"model": "demo", "prompt": "Hi", "structured_outputs": {"regex": "[0-9]{3}"}}
    httpx.post(f"{url}/v1/completions", json=body, timeout=HUNG_S).raise_for_status()


def begin_training(url: str) -> None:
    """Start a long fine-tune on a worker that serves HTTP."""
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
        response = client.post("/fine_tuning/jobs", json=body)
        assert response.is_success, response.text


def training_environ(model: str | Path, volume: Path) -> dict[str, str]:
    """Return the variables of a worker that can have every kind of child process."""
    return {
        "MODEL_NAME": str(model),
        "SERVED_MODEL_NAME": "demo",
        "BASE_PATH": str(volume),
        "ENABLE_LORA": "1",
        "MAX_LORA_RANK": "16",
        "LOG_FORMAT": "json",
    }


@dataclass
class ProcessTree:
    """A worker's main process and all its descendants, with their command lines."""

    main: psutil.Process
    commands: dict[psutil.Process, str] = field(default_factory=dict)
    _sessions: set[int] = field(default_factory=set)

    @classmethod
    def of_worker(cls, worker: BackgroundProcess) -> "ProcessTree":
        tree = cls(psutil.Process(worker.process.pid))
        for process in (tree.main, *tree.main.children(recursive=True)):
            # The process may have just exited.
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                tree.commands[process] = " ".join(process.cmdline())
                tree._sessions.add(os.getsid(process.pid))
        return tree

    def has_all(self, *parts: str) -> bool:
        """Return whether each part occurs in a command line."""
        return all(any(part in command for command in self.commands.values()) for part in parts)

    def running_commands(self) -> list[str]:
        """Return the command lines of running processes of the tree or of its sessions."""
        commands = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                ours = process in self.commands or os.getsid(process.pid) in self._sessions
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    commands.append(" ".join(process.cmdline()))
        return commands


def kill_worker(worker: BackgroundProcess) -> ProcessTree:
    """Kill a worker's main process; return the process tree that it had."""
    with suppress(psutil.NoSuchProcess):
        # A suspended process starts no further processes.
        psutil.Process(worker.process.pid).suspend()
    tree = ProcessTree.of_worker(worker)
    tree.main.kill()
    return tree


def wait_until_exited(tree: ProcessTree, limit_s: float) -> tuple[float, list[str]]:
    """Wait until all processes have exited; return the seconds, and those that remain."""
    started_at = time.monotonic()
    while (remaining := tree.running_commands()) and time.monotonic() - started_at < limit_s:
        time.sleep(0.01)
    return time.monotonic() - started_at, remaining
