"""A directory and settings while they are drawn, and the models that directories are copies of."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml
from support.models import lora
from support.models.damaged import CONFIG
from support.processes.commands import DEMO

MODEL, EMBEDDER = "MODEL_NAME", "EMBEDDING_MODEL_NAME"
TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# Settings that vLLM reads at import are missing, because one import serves all cases.
OPTIONS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text())
# Half of the directories are copies of these, and most others of TEXT.
USUAL = ("demo", "llama", "qwen3", "qwen2", "mistral")
# Models with one vocabulary, whose config.json has no nested parts.
_OTHERS = (
    "gemma gemma2 phi phi3 gpt2 gpt_neox opt bloom stablelm olmo2 granite mamba mixtral qwen3_moe"
)
TEXT = (*USUAL, *_OTHERS.split())
POOLING = ("minilm", "classifier")
MEDIA = ("idefics3", "qwen2_audio")


@dataclass(frozen=True)
class Bases:
    """Whole models, each of which is made when it is first needed."""

    folder: Path

    def get(self, name: str) -> Path:
        """Return the directory of a model; two processes may make the same one."""
        directory = self.folder / name
        if not directory.exists():
            # The classes of the models would be imported for every case otherwise.
            from support.models.tiny import MAKERS  # noqa: PLC0415 - see above

            with tempfile.TemporaryDirectory(dir=self.folder) as unfinished:
                MAKERS[name](Path(unfinished, name), DEMO)
                # The other process may have made it in the meantime.
                with suppress(OSError):
                    Path(unfinished, name).rename(directory)
        return directory


@dataclass
class Draft:
    """A case while it is drawn: its directories, settings, and notes about the choices."""

    bases: Bases
    folder: Path
    rng: Random
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def choose(self, items: Sequence[Any], note: str = "{}") -> Any:
        """Return one of the items, and note it."""
        chosen = self.rng.choice(items)
        self.notes.append(note.format(chosen))
        return chosen

    def is_chosen(self, probability: float, note: str) -> bool:
        """Return true with a probability, and note it then."""
        chosen = self.rng.random() < probability
        self.notes += [note] * chosen
        return chosen

    def copy_base(self, *names: str, setting: str = MODEL) -> Path:
        """Copy one of the models, by default a usual one, and set it; return its directory."""
        names = names or self.rng.choice((USUAL, USUAL, TEXT, TEXT, (*POOLING, *MEDIA)))
        return self.copy(self.choose(names), setting)

    def copy(self, name: str, setting: str = MODEL) -> Path:
        """Copy a model, and set it; return its directory."""
        directory = self.folder / name
        # A name within the folder, so that another copy of the same model has another one.
        while directory.exists():
            directory = directory.with_name(f"{directory.name}-2")
        shutil.copytree(self.bases.get(name), directory)
        self.settings[setting] = str(directory)
        return directory

    def choose_file(self, directory: Path) -> Path:
        """Return a file of a model that a worker may read, and note it."""
        ignored = {"README.md", ".gitattributes", "data_config.json", "recipe.sha256"}
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        names = [str(path.relative_to(directory)) for path in files if path.name not in ignored]
        return Path(directory, self.choose(names))

    def change_value(self, part: dict[str, Any]) -> None:
        """Remove a value of a configuration, or replace it by another one."""
        name = self.rng.choice(sorted(part))
        value = part.pop(name)
        values: list[Any] = [None, "foo", -1, [], {}, 0, True]
        if isinstance(value, int | float):
            values += [value * 2, value // 2, value + 1, str(value), float(value), 10**9]
        new = self.rng.choice([*values, "removed"])
        self.notes.append(f"{name}={json.dumps(new)} (was {str(value)[:30]})")
        if new != "removed":
            part[name] = new

    def add_adapter(self) -> Path:
        """Serve an adapter for the demo model with a model; return the adapter's directory."""
        adapter = self.folder / "adapter"
        lora.make_adapter(adapter, self.bases.get("demo"))
        self.settings |= {"ENABLE_LORA": "1", "LORA_MODULES": f"one={adapter}"}
        return adapter

    def set_option(self) -> None:
        """Set one of vLLM's options to a value that operators set."""
        name = self.rng.choice([*OPTIONS])
        self.settings[name] = self.rng.choice(OPTIONS[name])


def read_config(directory: Path, name: str = CONFIG) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / name).read_text())
    return config


def write_config(directory: Path, config: Any, name: str = CONFIG) -> None:
    (directory / name).write_text(json.dumps(config))
