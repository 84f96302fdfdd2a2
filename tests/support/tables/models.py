"""Twelve well-known models as their repositories have them: config.json, and headers of weights.

No weight is stored: a file of headers is made as long as the weights would be, with a hole in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.models.configs import complete

# Types of the format, and bytes of an element.
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}


@dataclass(frozen=True)
class Recorded:
    """A model.

    Attributes:
        name: of its repository, or of the one that it is made after.
        config: its config.json, but for what no size depends on.
        tensors: elements of its weights, by the format's names of types.
        token: bytes of a token in vLLM's cache, counted by hand: keys and values, or a latent
            state, of the layers that keep all tokens, in the elements that the cache has.
        settings: beside the model's name.
    """

    name: str
    config: dict[str, Any]
    tensors: Mapping[str, int]
    token: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """Bytes of its weights."""
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


def _recorded() -> dict[str, Recorded]:
    models = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {
        kind: Recorded(**{**model, "config": complete(model["config"])})
        for kind, model in models.items()
    }


RECORDED = _recorded()
