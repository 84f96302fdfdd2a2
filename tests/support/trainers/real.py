"""Trainings of a tiny model: rows, and attempts in this process or in a separate one."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support import ROOT
from trainer.interruptions import SigtermWatcher
from trainer.output import EventLog, copy_newest_checkpoint
from trainer.tokens import TOKEN_DTYPE, TokenRow
from trainer.training import Training
from worker.fine_tunes.spec import (
    ATTEMPTS_DIR,
    EVENTS_FILE,
    SPEC_FILE,
    Lora,
    Outcome,
    RowsFile,
    Spec,
)

VOCABULARY_SIZE = 32


def token_rows(count: int, seed: int = 0) -> list[TokenRow]:
    """Return rows of 6 to 12 tokens; the second half, the answer, continues the prompt's count."""
    random = np.random.default_rng(seed)
    rows = []
    for length in random.integers(6, 13, count):
        ids = (np.arange(length) + random.integers(VOCABULARY_SIZE)) % VOCABULARY_SIZE
        rows.append(_row(ids, length // 2))
    return rows


def noise_rows(count: int, seed: int) -> list[TokenRow]:
    """Return rows that a model can only learn by heart."""
    random = np.random.default_rng(seed)
    return [_row(random.integers(0, VOCABULARY_SIZE, 8), 4) for _ in range(count)]


def _row(ids: np.ndarray, prompt: int) -> TokenRow:
    row = np.zeros(len(ids), TOKEN_DTYPE)
    row["id"] = ids
    row["learned"][prompt:] = True
    return row


def tiny_model() -> LlamaForCausalLM:
    """Return a model that has the same weights each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]  # it has no types
        LlamaConfig(
            # With smaller weights the output would be nearly the same for all words, with any
            # adapter.
            initializer_range=0.2,
            vocab_size=VOCABULARY_SIZE,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            use_cache=False,
        )
    )


def spec(directory: Path, **others: Any) -> Spec:
    """Return the spec of a training with a model whose files are not read."""
    defaults = {
        "model": directory / "base",
        "tokenizer": directory / "base",
        "max_length": 64,
        "training": RowsFile(path=directory / "rows.jsonl"),
        "epochs": 2,
        "learning_rate": 1e-2,
        "batch_size": 4,
        "lora": Lora(r=4, lora_alpha=8, lora_dropout=0.1),
    }
    return Spec(**{**defaults, **others})


class Attempts:
    """A training in this process, attempt by attempt."""

    def __init__(
        self, directory: Path, rows: Sequence[TokenRow], validation: Sequence[TokenRow] = ()
    ) -> None:
        self.directory = directory / ATTEMPTS_DIR
        self._rows = rows, validation

    def run(
        self,
        name: str,
        spec: Spec,
        base: LlamaForCausalLM | None = None,
        interruptions: SigtermWatcher | None = None,
        checkpoint_s: float = 60,
    ) -> Outcome:
        path = self.directory / name
        path.mkdir(parents=True)
        copy_newest_checkpoint(self.directory, path)
        with EventLog(path / EVENTS_FILE, 0) as events:
            training = Training(
                spec, path, self._rows, events, interruptions or SigtermWatcher(), checkpoint_s
            )
            return training.run(base or tiny_model())

    def metrics_by_step(self, *names: str) -> dict[int, dict[str, float]]:
        """Return the metrics of each step of these attempts; later attempts take precedence."""
        metrics: dict[int, dict[str, float]] = {}
        for name in names:
            for event in events_of(self.directory / name):
                if event["metrics"]:
                    metrics.setdefault(event["step"], {}).update(event["metrics"])
        return metrics


def events_of(attempt: Path) -> list[dict[str, Any]]:
    """Return an attempt's events, without the first line."""
    lines = (attempt / EVENTS_FILE).read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def start_attempt(directory: Path, attempt: str, *options: str) -> "subprocess.Popen[str]":
    """Start an attempt in a separate process."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer", directory, attempt, *options],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_training(directory: Path, model: Path, count: int, **others: Any) -> Spec:
    """Write the rows and the spec of a training of a real model."""
    rows = directory / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"prompt": f"Say {n % 7}.", "response": f"It is {n % 7}, of course."}) + "\n"
            for n in range(count)
        )
    )
    wanted = spec(
        directory, model=model, tokenizer=model, max_length=256, learning_rate=2e-3, **others
    )
    (directory / SPEC_FILE).write_text(wanted.model_dump_json())
    return wanted
