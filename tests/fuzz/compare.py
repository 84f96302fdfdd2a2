"""Compares a worker with vLLM's own server: recorded, extended and generated bodies.

A request that one of them refuses alone must have a row in
``tests/support/traffic/differences.yaml``; each kind without a row is a failure.
"""

import asyncio
import json
import shutil
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from support import ROOT
from support.models.configs import CONTEXT, SHORT_TEMPLATE, copy_with_long_context
from support.models.minilm import MODEL as EMBEDDER
from support.processes.vllm_server import VllmServer, vllm_server
from support.traffic import compare
from support.traffic.compare import Comparison, Outcome
from support.traffic.extended import RAW_PATH, read_extended
from support.traffic.store import Request, read_recorded

from fuzz import print_line
from fuzz.bodies import EMBEDS, BodyStrategies
from fuzz.target import Server

SETTINGS = {
    "SERVED_MODEL_NAME": "demo",
    "MAX_MODEL_LEN": str(CONTEXT),
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "TOOL_CALL_PARSER": "hermes",
    "EMBEDDING_MODEL_NAME": str(EMBEDDER),
    "EMBEDDING_SERVED_MODEL_NAME": "minilm",
}
NAMES = {"demo": ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"), "minilm": ()}
# Routes whose bodies are generated more often than others.
WEIGHTS = {"/v1/chat/completions": 5, "/v1/responses": 4, "/v1/messages": 4, "/v1/completions": 3}
# Generated bodies that are sent before vLLM's servers are looked at.
CHUNK = 250
# Rounds without a new body that vLLM accepts, after which the run ends.
MAX_IDLE_ROUNDS = 5


@dataclass
class Sides:
    """A worker and vLLM's servers for its models, by name; a dead server is started again."""

    worker: Server
    models: dict[str, Path]
    logs: Path
    stack: ExitStack
    servers: dict[str, VllmServer]

    def start(self, name: str) -> None:
        options = ("--served-model-name", name, "--dtype", "float32", *NAMES[name])
        server = vllm_server(self.models[name], self.logs / f"vllm-{name}", *options)
        self.servers[name] = self.stack.enter_context(server)

    def restart_dead_servers(self) -> list[str]:
        dead = [name for name, server in self.servers.items() if server.process.poll() is not None]
        for name in dead:
            self.start(name)
        return dead

    def compare(self, requests: Iterable[tuple[str, Request]], comparison: Comparison) -> None:
        asyncio.run(self._compare(requests, comparison))

    async def _compare(
        self, requests: Iterable[tuple[str, Request]], comparison: Comparison
    ) -> None:
        urls = {"worker": self.worker.url, **{name: one.url for name, one in self.servers.items()}}
        async with (
            httpx.AsyncClient(base_url=urls["worker"], timeout=compare.TIMEOUT_S) as worker,
            httpx.AsyncClient(base_url=urls["demo"], timeout=compare.TIMEOUT_S) as demo,
            httpx.AsyncClient(base_url=urls["minilm"], timeout=compare.TIMEOUT_S) as minilm,
        ):
            send = {False: compare.sender(demo), True: compare.sender(minilm)}

            async def vllm(request: Request) -> Outcome:
                return await send[request.path in EMBEDS](request)

            await compare.compare(requests, vllm, compare.sender(worker), comparison)


def run(args: Namespace) -> int:
    """Compare all bodies; return the number of kinds of differences without a reason."""
    began, comparison, logs = time.monotonic(), Comparison(), args.logs / "compare"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    demo = copy_with_long_context(ROOT / ".models" / "demo", logs / "demo", SHORT_TEMPLATE)
    target = Server(args.checkout, logs / "worker", {**SETTINGS, "MODEL_NAME": str(demo)})
    with ExitStack() as stack:
        sides = Sides(target, {"demo": demo, "minilm": EMBEDDER}, logs, stack, {})
        stack.enter_context(target.start())
        for name in NAMES:
            sides.start(name)
        pids = target.pids
        sides.compare(stored_requests(), comparison)
        stored = comparison.count
        compare_generated(sides, comparison, args)
        has_lost = target.has_lost(pids)
    print_line(
        f"\ncompare: {stored} recorded and extended bodies, {comparison.count - stored} generated "
        f"ones; vLLM accepts {comparison.accepted}; {time.monotonic() - began:.0f} s"
    )
    if has_lost:
        print_line("compare: a process of the worker exited")
    return print_kinds(comparison, logs) + has_lost


def stored_requests() -> Iterator[tuple[str, Request]]:
    """Yield all recorded and extended requests to routes; a server has no raw jobs."""
    recorded = (
        (f"{client} {number}", request)
        for client, requests in read_recorded().items()
        for number, request in enumerate(requests)
    )
    for name, request in chain(recorded, read_extended()):
        if request.path != RAW_PATH:
            yield name, request


def compare_generated(sides: Sides, comparison: Comparison, args: Namespace) -> None:
    """Compare generated bodies until vLLM has accepted the requested number of them."""
    strategies: dict[str, st.SearchStrategy[Request]] = {}
    for name, server in sides.servers.items():
        with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=60) as response:
            found = BodyStrategies(json.load(response), name).requests
        strategies |= {
            path: one for path, one in found.items() if (path in EMBEDS) == (name == "minilm")
        }
    needed, rounds, idle = comparison.accepted + args.cases, 0, 0
    while comparison.accepted < needed and idle < MAX_IDLE_ROUNDS:
        before = comparison.accepted
        routes = [one for path, one in strategies.items() for _ in range(WEIGHTS.get(path, 1))]
        requests = draw(st.one_of(*routes), args.seed + rounds)
        sides.compare([("generated", one) for one in requests], comparison)
        for name in sides.restart_dead_servers():
            print_line(f"compare: vLLM's server of {name} exited in round {rounds}")
        rounds, idle = rounds + 1, 0 if comparison.accepted > before else idle + 1


def draw(strategy: st.SearchStrategy[Request], number: int) -> list[Request]:
    """Return generated requests; ``number`` is the seed."""
    found: list[Request] = []

    @seed(number)
    @settings(
        max_examples=CHUNK,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def add(request: Request) -> None:
        found.append(request)

    add()
    return found


def print_kinds(comparison: Comparison, logs: Path) -> int:
    """Print each kind with its reason; store a request of each one without a reason."""
    rows, unexplained = compare.read_rows(), 0
    for kind, found in sorted(comparison.names.items(), key=lambda item: str(item[0])):
        row = next((row for row in rows if row.explains(kind)), None)
        reason = f"{row.group}: {row.reason}" if row else f"NO REASON: request-{unexplained}.json"
        if row is None:
            example = json.dumps(vars(comparison.examples[kind]))
            (logs / f"request-{unexplained}.json").write_text(example)
            unexplained += 1
        print_line(f"{len(found):>5} x {kind}\n        {reason}")
    print_line(f"compare: {len(comparison.names)} kinds, {unexplained} without a reason ({logs})")
    return unexplained
