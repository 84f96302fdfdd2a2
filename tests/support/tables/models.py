"""Thirteen well-known models: their config.json, and the headers of their weights.

No weights are stored: a file of weights contains the headers, and a hole as large as the weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.models.configs import merge_base

# Bytes of an element, by the safetensors name of its type.
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}


@dataclass(frozen=True)
class RecordedModel:
    """A model.

    Attributes:
        name: Name of the model's repository, or of the repository of a similar model.
        config: The model's config.json, without keys that affect no size.
        tensors: Numbers of elements of the weights, by the safetensors name of their type.
        token: Bytes of a token in vLLM's cache, counted by hand: keys and values, or a latent
            state,
            of the layers that store all tokens, in the cache's type.
        settings: Settings in addition to the model's name.
    """

    name: str
    config: dict[str, Any]
    tensors: Mapping[str, int]
    token: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights in bytes."""
        return sum(SIZES[kind] * count for kind, count in self.tensors.items())

    def write(self, folder: Path) -> Path:
        """Write the model's directory."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        header: dict[str, Any] = {}
        end = 0
        for kind, count in self.tensors.items():
            begin, end = end, end + count * SIZES[kind]
            header[kind] = {"dtype": kind, "shape": [count], "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        return folder


def _read_models() -> dict[str, RecordedModel]:
    models = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {
        kind: RecordedModel(**{**model, "config": merge_base(model["config"])})
        for kind, model in models.items()
    }


RECORDED_MODELS = _read_models()
