"""Checks of what the files of a LoRA adapter hold, also of those that nobody has named yet.

vLLM refuses some broken adapters itself. It loads others and then answers wrongly: it pads matrices
that are too small with zeros, ignores a layer that the model does not have, and lets NaN spread to
other requests.
"""

import asyncio
import contextlib
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import try_to_load_from_cache
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from safetensors import SafetensorError, safe_open
from vllm.config import LoRAConfig
from vllm.lora.peft_helper import PEFTHelper

from worker.engine.options.declared import fields_of, literals
from worker.errors import InvalidInput
from worker.volume.adapters import CONFIG, WEIGHTS, Version, adapter_versions

log = logging.getLogger(__name__)

TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
NUMBER = re.compile(r"\d+")
RANK = re.compile(r"rank (\d+) is greater than max_lora_rank")
# safetensors' types with one weight in each number; others may pack several.
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})

# Adapters that are looked at for one listing: a look reads two files of the network volume. The
# others count as sound until the next listing.
MOST_LOOKS = 32

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
# An adapter's version, and why it can't be loaded; None if no reason is known.
Look = tuple[Version, str | None]


class BrokenAdapter(ValueError):
    """An adapter is broken; the message says how, without its path."""


class _Config(BaseModel):
    """The types of the keys that vLLM computes with; vLLM checks for features it lacks."""

    model_config = ConfigDict(strict=True, extra="allow")

    peft_type: Literal["LORA"] = "LORA"
    r: int = Field(ge=1)
    lora_alpha: FiniteFloat
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, FiniteFloat] | None = None


class AdapterChecks:
    """Checks adapters for one model."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        # What is known of the adapters that were listed last, by name.
        self._looks: dict[str, Look] = {}
        self._lock = threading.Lock()

    def check(self, folder: Path, *, values: bool = True) -> None:
        """Check an adapter's files; without ``values`` the weights themselves are not read.

        Raises:
            BrokenAdapter: vLLM would refuse it, or answer wrongly with it.
        """
        try:
            config = _Config.model_validate_json((folder / CONFIG).read_bytes())
            PEFTHelper.from_dict(config.model_dump()).validate_legal(self._config.lora_config)
        except ValidationError as invalid:
            messages = [
                ": ".join([*map(str, error["loc"]), error["msg"]])
                for error in invalid.errors(include_input=False, include_url=False)
            ]
            raise BrokenAdapter(f"{CONFIG}: {'; '.join(messages)}") from None
        except (TypeError, ValueError) as error:
            raise BrokenAdapter(f"{CONFIG}: {_with_rank(str(error))}") from None
        try:
            shapes = _adapter_shapes(folder / WEIGHTS, values=values)
        except SafetensorError as error:
            raise BrokenAdapter(f"{WEIGHTS}: {error}") from None
        check_shapes(shapes, None if config.rank_pattern else config.r, self._base)

    async def refuse_broken(self, folder: Path) -> None:
        """Check an adapter's files in a thread.

        Raises:
            InvalidInput: vLLM would refuse it, or answer wrongly with it.
        """
        try:
            await asyncio.to_thread(self.check, folder)
        except BrokenAdapter as broken:
            raise InvalidInput(str(broken)) from broken

    def reasons(self, root: Path, loaded: Mapping[str, Look]) -> dict[str, str | None]:
        """Return the adapters that have all their files, sorted, as ``Base`` does.

        An adapter's files are read once for each version of them. Call in a thread. ``loaded`` is
        what loading adapters has found out, which is more than a look does.
        """
        with self._lock:
            versions = adapter_versions(root)
            looks = {**self._looks, **loaded}
            known = {name: look for name, look in looks.items() if versions.get(name) == look[0]}
            for name in [name for name in versions if name not in known][:MOST_LOOKS]:
                known[name] = versions[name], self._reason(root / name)
            self._looks = known
            return {name: known[name][1] if name in known else None for name in versions}

    def _reason(self, folder: Path) -> str | None:
        try:
            self.check(folder, values=False)
        except BrokenAdapter as broken:
            log.warning("the adapter %s can't be loaded: %s", folder.name, broken)
            return str(broken)
        except OSError:
            # It may be on its way, or gone: a request that names it learns more.
            pass
        return None

    @cached_property
    def _base(self) -> Shapes:
        """The shapes of the model's weights."""
        return base_shapes(self._config.model_config, self._config.load_config.download_dir)


def check_lora_modules(modules: Sequence[Any], vllm_config: Any) -> None:
    """Check the adapters of LORA_MODULES that lie in local directories.

    Raises:
        BrokenAdapter: naming the first that is broken.
    """
    if not modules:
        return
    if vllm_config.lora_config is None:
        raise BrokenAdapter("LORA_MODULES needs ENABLE_LORA=1")
    checks = AdapterChecks(vllm_config)
    for module in modules:
        try:
            _check_local(Path(module.path).expanduser(), checks)
        except BrokenAdapter as broken:
            raise BrokenAdapter(f"LORA_MODULES: {module.name}: {broken}") from None


def _check_local(folder: Path, checks: AdapterChecks) -> None:
    if folder.is_absolute() and not (folder / CONFIG).is_file():
        raise BrokenAdapter(f"there is no {CONFIG} in {folder}")
    if (folder / WEIGHTS).is_file():
        checks.check(folder)


def _with_rank(message: str) -> str:
    """Add what to set MAX_LORA_RANK to, if vLLM's message is that an adapter's rank is above it."""
    if not (match := RANK.search(message)):
        return message
    ranks = sorted(map(int, literals(fields_of(LoRAConfig)["max_lora_rank"].annotation)))
    enough = next((rank for rank in ranks if rank >= int(match[1])), None)
    if enough is None:
        return f"{message.rstrip('.')}: vLLM takes at most {ranks[-1]}"
    return f"{message.rstrip('.')}: set MAX_LORA_RANK={enough}"


def check_shapes(shapes: Shapes, rank: int | None, base: Shapes) -> None:
    """Check that an adapter's matrices fit each other and the model's weights, by their names.

    The rank is None if they differ in it. What ``base`` lacks is not checked.

    Raises:
        BrokenAdapter: naming the first matrix that does not fit.
    """
    if not shapes:
        raise BrokenAdapter(f"{WEIGHTS} holds no tensors")
    modules: defaultdict[str, dict[str, Shape]] = defaultdict(dict)
    for tensor, shape in shapes.items():
        # vLLM judges other names itself; experts have several layouts.
        if (match := TENSOR.fullmatch(tensor)) and ".experts" not in tensor:
            modules[match[1]][match[2]] = shape
    known = {name.rpartition(".")[0] for name in base}
    kinds = {NUMBER.sub("*", module) for module in known}
    for module, parts in modules.items():
        _check_parts(module, parts, rank)
        if weight := base.get(f"{module}.weight"):
            _check_fit(module, parts, weight)
        elif module not in known and NUMBER.sub("*", module) in kinds:
            raise BrokenAdapter(f"the model has no {module}")


def base_shapes(model_config: Any, cache: str | None) -> dict[str, Shape]:
    """Return the shapes of a model's tensors by name, () for packed ones; {} if none are found.

    ``cache`` is the hub's cache directory, if not the default one.
    """
    shapes = {}
    folder = _model_folder(model_config, cache)
    for file in folder.glob("*.safetensors") if folder else ():
        with contextlib.suppress(SafetensorError, OSError), safe_open(file, "pt") as tensors:
            for name in tensors.offset_keys():
                tensor = tensors.get_slice(name)
                plain = tensor.get_dtype() in FLOATS
                shapes[name] = tuple(tensor.get_shape()) if plain else ()
    return shapes


def _model_folder(model_config: Any, cache: str | None) -> Path | None:
    model = model_config.model
    if Path(model).is_dir():
        return Path(model)
    with contextlib.suppress(ValueError):  # not a repository's name
        config = try_to_load_from_cache(model, "config.json", cache, model_config.revision)
        return Path(config).parent if isinstance(config, str) else None
    return None


def _adapter_shapes(file: Path, *, values: bool) -> dict[str, Shape]:
    shapes = {}
    with safe_open(file, "pt") as tensors:
        for name in tensors.offset_keys():
            tensor = tensors.get_slice(name)
            if (dtype := tensor.get_dtype()) not in FLOATS:
                raise BrokenAdapter(f"{name} is of type {dtype}, not floating point")
            if values and not torch.isfinite(tensors.get_tensor(name).float()).all():
                raise BrokenAdapter(f"{name} holds values that are not finite numbers")
            shapes[name] = tuple(tensor.get_shape())
    return shapes


def _check_parts(module: str, parts: Mapping[str, Shape], rank: int | None) -> None:
    if absent := {"A", "B"} - parts.keys():
        raise BrokenAdapter(f"{module} has no lora_{absent.pop()}")
    if wrong := [shape for shape in parts.values() if len(shape) != 2 or 0 in shape]:
        raise BrokenAdapter(f"{module} has a tensor of shape {list(wrong[0])}: no matrix")
    (rank_a, _), (_, rank_b) = parts["A"], parts["B"]
    if rank_a != rank_b or rank not in {None, rank_a}:
        found = f"lora_A has {rank_a} rows and lora_B {rank_b} columns"
        raise BrokenAdapter(f"{module}: {found}, but r is {rank or 'one number'}")


def _check_fit(module: str, parts: Mapping[str, Shape], weight: Shape) -> None:
    shape = parts["B"][0], parts["A"][1]
    # Embeddings, and some models' linear layers, are stored transposed.
    if weight not in {shape, shape[::-1]}:
        message = f"is for a weight of {_size(shape)}, the model's has {_size(weight)}"
        raise BrokenAdapter(f"{module} {message}")


def _size(shape: Shape) -> str:
    return " x ".join(map(str, shape))
