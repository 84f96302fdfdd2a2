"""Prints what each layer of the recorded models keeps of texts, asked of vLLM's own executor.

The models have few, narrow layers, which are loaded with dummy weights, as in a start on a CPU;
what a layer keeps does not depend on those.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from vllm.distributed import cleanup_dist_env_and_memory
from vllm.v1.executor.abstract import Executor

from support.doctor import CPU, options
from support.tables.models import RECORDED, Recorded
from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import plan_cache
from worker.engine.model_config import load_classes
from worker.engine.seam.locations import find

# Layers, where the first two are not of all kinds.
_LAYERS = {"gemma3_text": 6, "granitemoehybrid": 6}
_NARROW = {
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "shared_intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "vocab_size": 1024,
}
_SETTINGS = {
    "DTYPE": "bfloat16",
    "LOAD_FORMAT": "dummy",
    "MAX_MODEL_LEN": "512",
    "SKIP_TOKENIZER_INIT": "1",
}


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with few layers; without a quantization, whose kernels are a GPU's."""
    made = copy.deepcopy(config)
    made.pop("quantization_config", None)
    layers = _LAYERS.get(made["model_type"], 2)
    made |= {key: value for key, value in _NARROW.items() if key in made}
    made["num_hidden_layers"] = layers
    if "layer_types" in made:
        made["layer_types"] = made["layer_types"][:layers]
    return made


def engine(model: Recorded, folder: Path) -> EngineArguments:
    (folder / "config.json").write_text(json.dumps(small(model.config)))
    given = {"MODEL": str(folder), "TOKENIZER": str(folder), **_SETTINGS, **model.settings}
    return options(CPU).parse(given).arguments


def pages(specs: Any) -> dict[str, list[Any]]:
    return {
        name: [type(spec).__name__, spec.block_size, spec.page_size_bytes]
        for name, spec in specs.items()
    }


def compared(name: str) -> dict[str, Any]:
    """Return the pages of a model's layers, as the doctor plans and as a start makes them."""
    model = RECORDED[name]
    with tempfile.TemporaryDirectory() as folder:
        arguments = engine(model, Path(folder))
        load_classes(model.config["architectures"])
        planned = plan_cache(arguments, model.config["architectures"], 1, None)
        config = find("AsyncEngineArgs").from_cli_args(arguments.vllm).create_engine_config()
        executor = Executor.get_class(config)(config)
        try:
            (made,) = executor.get_kv_cache_specs()
            return {"planned": pages(planned.specs), "made": pages(made)}
        finally:
            executor.shutdown()
            cleanup_dist_env_and_memory()


if __name__ == "__main__":
    found = {name: compared(name) for name in sys.argv[1:]}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
