"""Measures the checks of a request: long sessions of coding agents, and bodies of other clients.

    PYTHONPATH=src:tests python benchmarks/in_process/request_checks.py

No engine is started. Prints milliseconds of CPU time for a request, from its parsed JSON to the
body for vLLM's server, and the requests that are refused.
"""

import gc
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import ROOT
from support.engine.scripted import ScriptedEngine, settings
from support.models.configs import CONTEXT
from support.traffic.compare import VARIABLE
from support.traffic.extended import (
    PLAIN_CALLS,
    RAW_PATH,
    claude_code_session,
    codex_session,
    read_extended,
)
from support.traffic.store import Request, read_recorded
from transformers import AutoTokenizer

from worker.dialects import parse_input
from worker.dialects.openai.forward import prepare_body
from worker.dialects.table import find_route
from worker.engine.run.requests.limits import check_bad_words, check_items, limit_texts
from worker.errors import WorkerError
from worker.job import OpenAIJob

MODEL = ROOT / ".models" / "demo"
PARTS = ("input", "body", "engine")


class Checks:
    """The worker's checks, in the order in which a request passes them."""

    def __init__(self, model: Path) -> None:
        self.settings = settings()
        self.engine = ScriptedEngine()
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        tokenizer.max_chars_per_token = max(map(len, tokenizer.get_vocab()))
        self.client: Any = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=CONTEXT),
            renderer=SimpleNamespace(tokenizer=tokenizer),
        )

    def run(self, request: Request) -> Iterator[None]:
        """Run the checks of each part; yield after each.

        Raises:
            WorkerError: The request is refused.
        """
        if request.path == RAW_PATH:
            parse_input(request.body["input"])
            yield
            return
        payload = {"route": request.path.split("?")[0], "method": "POST", "body": request.body}
        job = parse_input(payload)
        yield
        assert isinstance(job, OpenAIJob)
        route = find_route(job)
        assert route is not None
        body, _ = prepare_body(job, route, self.engine, "request-1", self.settings)
        yield
        limited = limit_texts(self.client, body, route.shape)
        if route.shape.accepts_items:
            check_items(limited)
        check_bad_words(limited.get("bad_words"), self.client.renderer.tokenizer)
        yield


def measure(checks: Checks, requests: Iterable[Request]) -> None:
    """Print the figures of requests."""
    seconds: dict[str, list[float]] = {part: [] for part in (*PARTS, "all")}
    refusals: Counter[str] = Counter()
    sizes = []
    for request in requests:
        sizes.append(len(json.dumps(request.body)))
        began = before = time.process_time()
        try:
            for part, _ in zip(PARTS, checks.run(request), strict=False):
                now = time.process_time()
                seconds[part].append(now - before)
                before = now
        except WorkerError as refusal:
            refusals[VARIABLE.sub("#", str(refusal))[:120]] += 1
        else:
            seconds["all"].append(time.process_time() - began)
    print(f"  {len(sizes)} requests of {min(sizes):,} to {max(sizes):,} bytes")
    for part, times in seconds.items():
        if times:
            ordered = [1000 * time_s for time_s in sorted(times)]
            p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
            print(
                f"  {part:<6} p50 {p50:7.2f} ms, p99 {p99:7.2f} ms, longest {ordered[-1]:7.2f} ms"
            )
    for message, count in refusals.most_common():
        print(f"  {count} refused: {message}")


SETS: dict[str, Callable[[], Iterable[Request]]] = {
    "Claude Code: 300 turns, 260 tools, invented names": claude_code_session,
    "Claude Code: 300 turns, 128 tools": lambda: claude_code_session(tools=128, calls=PLAIN_CALLS),
    "Codex: 1,200 items, invented names": codex_session,
    "Codex: 1,200 items": lambda: codex_session(calls=PLAIN_CALLS),
    "Codex: 500 items": lambda: codex_session(items=500, calls=PLAIN_CALLS),
    "recorded bodies": lambda: (one for found in read_recorded().values() for one in found),
    "extended bodies": lambda: (one for _, one in read_extended()),
}


def main() -> None:
    # The worker logs keys without an effect.
    logging.disable(logging.WARNING)
    checks = Checks(MODEL)
    # The first requests import modules.
    for request in (*claude_code_session(1, 128, PLAIN_CALLS), *codex_session(40, PLAIN_CALLS)):
        list(checks.run(request))
    # As a worker does after its start: collecting all imported objects takes a third of a second.
    gc.freeze()
    for name, requests in SETS.items():
        print(name)
        measure(checks, requests())


if __name__ == "__main__":
    main()
