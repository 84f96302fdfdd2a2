"""Creates embeddings with a model that can also generate text, and closes the engine."""

import json
import multiprocessing
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model.scripts.shared import check_refusal, collect_failures, report
from support.processes.background import HUNG_S

from worker.offline import LLM


def vectors_are_in_the_order_of_the_prompts(llm: LLM, model: str) -> None:
    def vectors(prompts: Any) -> list[Any]:
        return [one.outputs.embedding for one in llm.embed(prompts, use_tqdm=False)]

    (first, other, again), (alone,) = vectors(["a", "b", "a"]), vectors("b")
    width = json.loads(Path(model, "config.json").read_text())["hidden_size"]
    assert [len(vector) for vector in (first, other, again)] == [width] * 3
    assert first == pytest.approx(again, abs=1e-4)
    assert other == pytest.approx(alone, abs=1e-4)
    assert first != pytest.approx(other, abs=1e-2)
    check_refusal(llm.generate, 400, "does not generate text", prompts="a")
    long = ["a", [5] * 600]
    check_refusal(llm.embed, 400, "maximum context length is 512 tokens", prompts=long)
    assert vectors("b")[0] == pytest.approx(alone, abs=1e-4)


def leaving_the_with_block_stops_the_engine(llm: LLM) -> None:
    # vLLM kills a core that exits slowly, without waiting for its exit.
    for process in multiprocessing.active_children():
        process.join(HUNG_S)
    assert not multiprocessing.active_children()
    check_refusal(llm.embed, "RuntimeError", "this LLM is closed", prompts="a")


def main(model: str) -> None:
    with LLM(model, runner="pooling", max_model_len=512) as llm:
        failed = collect_failures(partial(vectors_are_in_the_order_of_the_prompts, llm, model))
        assert multiprocessing.active_children()
    report(failed=failed | collect_failures(partial(leaving_the_with_block_stops_the_engine, llm)))


if __name__ == "__main__":
    main(sys.argv[1])
