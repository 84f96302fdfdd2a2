"""Engines as the doctor sees them, for machines other than the one that runs the tests."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.models import configs as models
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding
from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.process.estimates import GIB
from worker.store import File, Origin, Snapshot

CPU = Machine(cpu=True)
RTX_4090 = Machine(cpu=False, gpus=(Gpu("RTX 4090", int(23.99 * GIB)),))
H100 = Machine(cpu=False, gpus=(Gpu("H100", int(79.6 * GIB)),))
TWO_RTX_4090 = Machine(cpu=False, gpus=RTX_4090.gpus * 2)

LLAMA_WEIGHTS = File("model.safetensors", models.LLAMA_3_1_8B_ELEMENTS * 2)
LLAMA = Snapshot(
    model="meta-llama/Llama-3.1-8B-Instruct",
    origin=Origin.VOLUME,
    directory=Path("/nowhere"),
    commit="0e9e39f249a16976918f6564b8830bc894c89659",
    weights=(LLAMA_WEIGHTS,),
    config=models.LLAMA_3_1_8B,
    tensors={"BF16": models.LLAMA_3_1_8B_ELEMENTS},
)


@functools.cache
def options(machine: Machine) -> Options:
    return Options(machine)


def arguments(machine: Machine = CPU, **settings: str) -> EngineArguments:
    return options(machine).parse_engine_settings({"MODEL": "org/name", **settings}).arguments


def candidate(
    machine: Machine = RTX_4090, config: dict[str, Any] = models.LLAMA_3_1_8B, **settings: str
) -> Candidate:
    snapshot = Snapshot(**{**vars(LLAMA), "config": config})
    return Candidate.from_snapshot(arguments(machine, **settings), snapshot)


def only_finding(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding
