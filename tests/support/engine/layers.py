"""Prints the cache pages of the recorded models' layers, as vLLM's own executor reports them.

The models have few, narrow layers, which are loaded with dummy weights, as at a startup on a CPU;
the cache pages of a layer do not depend on these changes.
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
from support.tables.models import RECORDED_MODELS, RecordedModel
from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import plan_kv_cache
from worker.engine.model_config import import_model_classes
from worker.engine.seam.locations import import_from_vllm

# Number of layers of models whose first two layers are not of all kinds.
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


def shrink_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with few layers, and without a quantization that needs a GPU."""
    shrunk = copy.deepcopy(config)
    shrunk.pop("quantization_config", None)
    layers = _LAYERS.get(shrunk["model_type"], 2)
    shrunk |= {key: value for key, value in _NARROW.items() if key in shrunk}
    shrunk["num_hidden_layers"] = layers
    if "layer_types" in shrunk:
        shrunk["layer_types"] = shrunk["layer_types"][:layers]
    return shrunk


def engine_arguments(model: RecordedModel, folder: Path) -> EngineArguments:
    (folder / "config.json").write_text(json.dumps(shrink_config(model.config)))
    settings = {"MODEL": str(folder), "TOKENIZER": str(folder), **_SETTINGS, **model.settings}
    return options(CPU).parse_engine_settings(settings).arguments


def page_sizes(specs: Any) -> dict[str, list[Any]]:
    return {
        name: [type(spec).__name__, spec.block_size, spec.page_size_bytes]
        for name, spec in specs.items()
    }


def compare_pages(name: str) -> dict[str, Any]:
    """Return the pages of a model's layers, as planned by the doctor and as made at startup."""
    model = RECORDED_MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        arguments = engine_arguments(model, Path(folder))
        import_model_classes(model.config["architectures"])
        planned = plan_kv_cache(arguments, model.config["architectures"], 1, None)
        config = (
            import_from_vllm("AsyncEngineArgs")
            .from_cli_args(arguments.vllm_args)
            .create_engine_config()
        )
        executor = Executor.get_class(config)(config)
        try:
            (specs,) = executor.get_kv_cache_specs()
            return {"planned": page_sizes(planned.specs), "made": page_sizes(specs)}
        finally:
            executor.shutdown()
            cleanup_dist_env_and_memory()


if __name__ == "__main__":
    comparisons = {name: compare_pages(name) for name in sys.argv[1:]}
    sys.stdout.write(f"\n{json.dumps(comparisons)}\n")
