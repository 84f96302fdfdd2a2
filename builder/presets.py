"""Which of the platform's pools hold every model that the hub's listing proposes.

What is known of the models stands in ``presets.json``: the part of config.json that sizes depend
on, and the elements of the weights by their types, as the files' headers have them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes import known

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Fit
from worker.doctor.gpus.asked import pools
from worker.doctor.memory import judge
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.settings.values import text
from worker.store import File, Origin, Snapshot

# Where one GPU serves, whichever it is.
_ONE = Machine(cpu=False, gpus=(Gpu("", 0),))
# A model that fits a GPU is not to wait for one that is so many times as large, and costs so much.
_WASTE = 4
# Bytes of the elements that the presets' weights have.
_BYTES = {"BF16": 2, "F32": 4, "U8": 1}


def pools_for(presets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the pools each of whose GPUs holds any of the presets with all of its context.

    The smallest come first; those many times as large are left out.
    """
    options = Options(_ONE)
    models = [candidate(preset, options) for preset in presets]
    holding = [
        pool for pool in pools() if all(judge(model, pool).fit is Fit.FITS for model in models)
    ]
    return [pool.name for pool in holding if pool.gpu.memory < _WASTE * holding[0].gpu.memory]


def candidate(settings: Mapping[str, Any], options: Options) -> Candidate:
    """Return the engine that settings make, of a model that is known.

    Args:
        settings: by their names.
        options: vLLM's, on the machine that it is for.
    """
    values = {name: text(value) for name, value in settings.items()}
    name = values.pop("MODEL_NAME")
    model = known()[name]
    size = sum(_BYTES[kind] * count for kind, count in model["tensors"].items())
    snapshot = Snapshot(
        model=name,
        origin=Origin.DOWNLOAD,
        place=Path(__file__).parent / "not there",
        weights=(File("model.safetensors", size),),
        config=model["config"],
        tensors=model["tensors"],
    )
    return Candidate.of(options.parse({"MODEL": name, **values}).arguments, snapshot)
