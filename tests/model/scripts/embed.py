"""Embeds with a model that can also generate, and closes the engine."""

import multiprocessing
import sys
from typing import Any

from model.scripts.shared import refusal, report
from support.processes.background import HUNG_S

from worker.offline import LLM


def vectors(outputs: list[Any]) -> list[list[float]]:
    return [list(output.outputs.embedding) for output in outputs]


def main(model: str) -> None:
    with LLM(model, runner="pooling", max_model_len=512) as llm:
        results = {
            "together": vectors(llm.embed(["a", "b", "a"], use_tqdm=False)),
            "alone": vectors(llm.embed("b", use_tqdm=False)),
            "generate": refusal(lambda: llm.generate("a", use_tqdm=False)),
            "too_long": refusal(lambda: llm.embed(["a", [5] * 600], use_tqdm=False)),
            "afterwards": vectors(llm.embed("b", use_tqdm=False)),
            "processes": len(multiprocessing.active_children()),
        }
    # vLLM kills its core without waiting for its end, if that takes the core long.
    for process in multiprocessing.active_children():
        process.join(HUNG_S)
    left = len(multiprocessing.active_children())
    report(**results, left=left, closed=refusal(lambda: llm.embed("a", use_tqdm=False)))


if __name__ == "__main__":
    main(sys.argv[1])
