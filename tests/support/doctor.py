"""Engines as the doctor sees them, for machines other than the one that runs the tests."""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.models import configs as models
from support.settings import start_on
from worker.doctor.candidate import Candidate
from worker.doctor.engines import rehearse_start
from worker.doctor.findings import Finding
from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.engine.start.artifacts import artifacts_in_arguments
from worker.process.memory import GIB
from worker.store import Artifact, ArtifactLocation, File, Origin, Snapshot, disk

CPU = Machine(cpu=True)
RTX_4090 = Machine(cpu=False, gpus=(Gpu("RTX 4090", int(23.99 * GIB)),))
H100 = Machine(cpu=False, gpus=(Gpu("H100", int(79.6 * GIB)),))
TWO_RTX_4090 = Machine(cpu=False, gpus=RTX_4090.gpus * 2)

LLAMA_WEIGHTS = File("model.safetensors", models.LLAMA_3_1_8B_ELEMENTS * 2)
_folders = tempfile.TemporaryDirectory()


def write_config(config: Mapping[str, Any]) -> Path:
    """Return a directory that contains only a config.json."""
    text = json.dumps(config)
    folder = Path(_folders.name, hashlib.sha256(text.encode()).hexdigest())
    folder.mkdir(exist_ok=True)
    # Another fork of the tests may read the file.
    written = folder / str(os.getpid())
    written.write_text(text)
    written.replace(folder / "config.json")
    return folder


LLAMA = Snapshot(
    model="meta-llama/Llama-3.1-8B-Instruct",
    origin=Origin.VOLUME,
    directory=Path("/nowhere"),
    small_files=write_config(models.LLAMA_3_1_8B),
    commit="0e9e39f249a16976918f6564b8830bc894c89659",
    weights=(LLAMA_WEIGHTS,),
    config=models.LLAMA_3_1_8B,
    tensors={"BF16": models.LLAMA_3_1_8B_ELEMENTS},
)


def describe_directory(directory: Path) -> Snapshot:
    """Return the snapshot of a model in a directory."""
    location = ArtifactLocation(Artifact(str(directory)), directory, Origin.DIRECTORY)
    return disk.read_snapshot(location)


@functools.cache
def options(machine: Machine) -> Options:
    return Options(machine)


def arguments(machine: Machine = CPU, **settings: str) -> EngineArguments:
    return options(machine).parse_engine_settings({"MODEL": "org/name", **settings}).arguments


def candidate(
    machine: Machine = RTX_4090, config: dict[str, Any] = models.LLAMA_3_1_8B, **settings: str
) -> Candidate:
    folder = write_config(config)
    snapshot = replace(LLAMA, config=config, small_files=folder)
    engine = arguments(machine, **settings).with_options(model=str(folder), tokenizer=str(folder))
    return Candidate(engine, snapshot)


def rehearse(
    config: dict[str, Any] = models.LLAMA_3_1_8B, **settings: str
) -> tuple[Candidate | None, list[Finding]]:
    """Rehearse the start of an engine on a CPU, for a model without a tokenizer."""
    engine = arguments(CPU, SKIP_TOKENIZER_INIT="1", **settings)
    model, *_ = artifacts_in_arguments(engine)
    snapshot = replace(LLAMA, config=config, small_files=write_config(config))
    return rehearse_start(engine, {model: snapshot}, start_on(CPU))


def only_finding(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding
