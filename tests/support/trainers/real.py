"""Trainings: rows, a model of a few thousand numbers, and attempts in this process or their own."""

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
from trainer.checkpoints import adopt
from trainer.endings import Interruptions
from trainer.events import Events
from trainer.spec import ATTEMPTS, EVENTS, SPEC, Data, Lora, Outcome, Spec
from trainer.texts import TOKEN, Row
from trainer.training import Training

WORDS = 32


def token_rows(count: int, seed: int = 0) -> list[Row]:
    """Return rows of 6 to 12 tokens whose answer, the later half, counts on from the prompt."""
    random = np.random.default_rng(seed)
    rows = []
    for length in random.integers(6, 13, count):
        ids = (np.arange(length) + random.integers(WORDS)) % WORDS
        rows.append(_row(ids, length // 2))
    return rows


def noise(count: int, seed: int) -> list[Row]:
    """Return rows that nothing can be learned from but by heart."""
    random = np.random.default_rng(seed)
    return [_row(random.integers(0, WORDS, 8), 4) for _ in range(count)]


def _row(ids: np.ndarray, prompt: int) -> Row:
    row = np.zeros(len(ids), TOKEN)
    row["id"] = ids
    row["learned"][prompt:] = True
    return row


def tiny_model() -> LlamaForCausalLM:
    """Return a model with the same weights each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]  # it has no types
        LlamaConfig(
            # Or what comes out of it is nearly the same for all words, whatever the adapter does.
            initializer_range=0.2,
            vocab_size=WORDS,
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
    """Return a training of a model whose files are not read."""
    plain = {
        "model": directory / "base",
        "tokenizer": directory / "base",
        "max_length": 64,
        "training": Data(path=directory / "rows.jsonl"),
        "epochs": 2,
        "learning_rate": 1e-2,
        "batch_size": 4,
        "lora": Lora(r=4, lora_alpha=8, lora_dropout=0.1),
    }
    return Spec(**{**plain, **others})


class Attempts:
    """A training in this process, attempt by attempt."""

    def __init__(
        self, directory: Path, rows: Sequence[Row], validation: Sequence[Row] = ()
    ) -> None:
        self.directory = directory / ATTEMPTS
        self._rows = rows, validation

    def run(
        self,
        name: str,
        wanted: Spec,
        base: LlamaForCausalLM | None = None,
        interruptions: Interruptions | None = None,
        checkpoint_s: float = 60,
    ) -> Outcome:
        place = self.directory / name
        place.mkdir(parents=True)
        adopt(self.directory, place)
        with Events(place / EVENTS, 0) as events:
            training = Training(
                wanted, place, self._rows, events, interruptions or Interruptions(), checkpoint_s
            )
            return training.run(base or tiny_model())

    def logs(self, *names: str) -> dict[int, dict[str, float]]:
        """Return the numbers of each step that these attempts have written, later ones first."""
        found: dict[int, dict[str, float]] = {}
        for name in names:
            for event in events_of(self.directory / name):
                if event["metrics"]:
                    found.setdefault(event["step"], {}).update(event["metrics"])
        return found


def events_of(attempt: Path) -> list[dict[str, Any]]:
    """Return an attempt's events, without its first line."""
    lines = (attempt / EVENTS).read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def begun(directory: Path, attempt: str, *options: str) -> "subprocess.Popen[str]":
    """Start an attempt in a process of its own."""
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


def written(directory: Path, model: Path, count: int, **others: Any) -> Spec:
    """Write a training of a real model: prompts and answers, and the spec."""
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
    (directory / SPEC).write_text(wanted.model_dump_json())
    return wanted
