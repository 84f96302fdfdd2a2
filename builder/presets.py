"""Selects the platform's GPU pools on which every preset of the hub's listing fits.

``presets.json`` has the data about the models: the keys of config.json that determine sizes, and
the number of elements of the weights by data type, from the headers of the files.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes import load_models

from worker.doctor.candidate import Candidate
from worker.doctor.gpus import Fit, pool_choices
from worker.doctor.memory import judge_fit
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.settings.values import format_value
from worker.store import File, Origin, Snapshot

# A machine with one GPU of any type.
_ONE_GPU = Machine(cpu=False, gpus=(Gpu("", 0),))
# A preset must not wait for a GPU with four times the memory of the smallest suitable one, or pay
# for it.
_MAX_OVERSIZE = 4
# Bytes per element, for the data types of the presets' weights.
_BYTES_PER_ELEMENT = {"BF16": 2, "F32": 4, "U8": 1}
_folders = tempfile.TemporaryDirectory()


def pools_for(presets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the pools whose GPUs all hold each of the presets with its full context.

    The smallest come first; much larger ones are left out.
    """
    options = Options(_ONE_GPU)
    models = [candidate(preset, options) for preset in presets]
    suitable = [
        pool
        for pool in pool_choices()
        if all(judge_fit(model, pool).fit is Fit.FITS for model in models)
    ]
    return [
        pool.name
        for pool in suitable
        if pool.smallest_gpu.memory < _MAX_OVERSIZE * suitable[0].smallest_gpu.memory
    ]


def candidate(settings: Mapping[str, Any], options: Options) -> Candidate:
    """Return the engine that settings describe, for a model in ``presets.json``.

    Args:
        settings: Values by name.
        options: vLLM's options on the machine of the engine.
    """
    values = {name: format_value(value) for name, value in settings.items()}
    name = values.pop("MODEL_NAME")
    model = load_models()[name]
    # vLLM reads a configuration from a directory.
    folder = Path(_folders.name, name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model["config"]))
    size = sum(_BYTES_PER_ELEMENT[kind] * count for kind, count in model["tensors"].items())
    snapshot = Snapshot(
        model=name,
        origin=Origin.DOWNLOAD,
        directory=Path(__file__).parent / "not there",
        small_files=folder,
        weights=(File("model.safetensors", size),),
        config=model["config"],
        tensors=model["tensors"],
    )
    engine = options.parse_engine_settings({"MODEL": name, **values}).arguments
    return Candidate(engine.with_options(model=str(folder), tokenizer=str(folder)), snapshot)
