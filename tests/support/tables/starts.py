"""Settings and models as operators pair them, and whether a worker without a GPU starts with them.

They are in starts.json. ``<name>`` in a value stands for a directory that ``places`` makes. The
words of a row are what both the doctor and the start say about it.
"""

import json
from pathlib import Path
from typing import NamedTuple

from support import ROOT
from support.models.configs import WHISPER, copied
from support.models.lora import configured, make_adapter
from support.models.minilm import MODEL as MINILM
from worker.volume.adapters import CONFIG


class Pair(NamedTuple):
    """Settings, and what is said of them; without MODEL_NAME it is the demo model.

    ``of_start``: words of the start, where the library that reads the weights has others.
    """

    name: str
    settings: dict[str, str]
    words: str = ""
    of_start: str = ""

    @property
    def starts(self) -> bool:
        return not self.words


_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
PAIRS = [Pair(*row) for row in _DATA["pairs"]]
# The names of one for each part of the doctor; what it says of the others is a slow test.
SAMPLE = set(_DATA["sample"])
# Of the pairs that are refused on a CPU: what no GPU would take either, and what only CPUs refuse.
NOWHERE = [pair for pair in PAIRS if pair.name in _DATA["refused on every device"]]
ON_CPUS = [pair for pair in PAIRS if pair.name in _DATA["refused on CPUs alone"]]


def environ(pair: Pair, directory: Path) -> dict[str, str]:
    """Return the variables of a pair, with the directories that ``places`` made."""
    settings = {"MODEL_NAME": "<demo>", "HF_HUB_OFFLINE": "1", **pair.settings}
    for place in directory.iterdir():
        settings = {
            name: value.replace(f"<{place.name}>", str(place)) for name, value in settings.items()
        }
    return {**settings, "HF_HOME": str(directory / "no cache")}


def places(demo: Path, directory: Path) -> None:
    """Make the models and adapters of the pairs."""
    (directory / "demo").symlink_to(demo)
    (directory / "minilm").symlink_to(MINILM)
    (directory / "plugins").symlink_to(ROOT / "tests" / "plugins")
    copied(demo, directory / "xverse", architectures=["XverseForCausalLM"])
    copied(demo, directory / "foreign", model_type="own", auto_map={"AutoConfig": "own.Own"})
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    copied(demo, directory / "gptq", quantization_config=gptq)
    copied(demo, directory / "odd heads", num_attention_heads=3)
    copied(demo, directory / "speech", **WHISPER)
    cut = copied(demo, directory / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (copied(demo, directory / "weightless") / "model.safetensors").unlink()
    (copied(demo, directory / "shapeless") / "config.json").write_text("{")
    make_adapter(directory / "adapter", demo)
    make_adapter(directory / "rank64", demo)
    configured(r=64)(directory / "rank64")
    make_adapter(directory / "broken", demo)
    (directory / "broken" / CONFIG).unlink()
