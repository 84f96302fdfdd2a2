"""Checks of the files of LoRA adapters, also of adapters that no request has named yet.

vLLM refuses some broken adapters itself. It loads others and then generates wrong output: it pads
matrices that are too small with zeros, ignores layers that the model does not have, and lets NaN
spread to other requests.
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

from worker.engine.options.option import literal_or_enum_values, pydantic_fields
from worker.errors import InvalidInput
from worker.volume.adapters import CONFIG, WEIGHTS, AdapterVersion, adapter_versions

log = logging.getLogger(__name__)

TENSOR_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
NUMBER = re.compile(r"\d+")
RANK_MESSAGE = re.compile(r"rank (\d+) is greater than max_lora_rank")
# Data types of safetensors in which each number is one weight; other types may pack several.
FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})

# Maximum number of adapters to check for one listing of the volume. Each check reads two files of
# the network volume. All other adapters count as valid until the next listing.
MAX_CHECKS_PER_LISTING = 32

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
# An adapter's version, and the reason why it can't be loaded; None if no reason is known.
CheckResult = tuple[AdapterVersion, str | None]


class BrokenAdapter(ValueError):
    """The adapter is broken; the message says how, without the adapter's path."""


class _AdapterConfig(BaseModel):
    """Configuration keys of an adapter that vLLM uses; vLLM itself refuses unsupported features."""

    model_config = ConfigDict(strict=True, extra="allow")

    peft_type: Literal["LORA"] = "LORA"
    r: int = Field(ge=1)
    lora_alpha: FiniteFloat
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, FiniteFloat] | None = None


class AdapterChecker:
    """Checks whether the files of LoRA adapters are valid and fit one base model."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        # Results for the adapters of the last listing, by name.
        self._results: dict[str, CheckResult] = {}
        self._lock = threading.Lock()

    def check_files(self, folder: Path, *, read_weights: bool = True) -> None:
        """Check an adapter's files; with ``read_weights``, also whether all weights are finite.

        Raises:
            BrokenAdapter: If vLLM would refuse the adapter, or generate wrong output with it.
        """
        try:
            config = _AdapterConfig.model_validate_json((folder / CONFIG).read_bytes())
            PEFTHelper.from_dict(config.model_dump()).validate_legal(self._config.lora_config)
        except ValidationError as invalid:
            messages = [
                ": ".join([*map(str, error["loc"]), error["msg"]])
                for error in invalid.errors(include_input=False, include_url=False)
            ]
            raise BrokenAdapter(f"{CONFIG}: {'; '.join(messages)}") from None
        except (TypeError, ValueError) as error:
            raise BrokenAdapter(f"{CONFIG}: {_add_rank_suggestion(str(error))}") from None
        try:
            shapes = _read_adapter_shapes(folder / WEIGHTS, read_weights=read_weights)
        except SafetensorError as error:
            raise BrokenAdapter(f"{WEIGHTS}: {error}") from None
        check_adapter_shapes(
            shapes, None if config.rank_pattern else config.r, self._base_tensor_shapes
        )

    async def check_files_in_thread(self, folder: Path) -> None:
        """Check an adapter's files in a thread; raise ``InvalidInput`` if they are broken."""
        try:
            await asyncio.to_thread(self.check_files, folder)
        except BrokenAdapter as broken:
            raise InvalidInput(str(broken)) from broken

    def find_problems_by_adapter(
        self, root: Path, loaded: Mapping[str, CheckResult]
    ) -> dict[str, str | None]:
        """Return the complete adapters in ``root`` by name, each with its known problem or None.

        At most ``MAX_CHECKS_PER_LISTING`` adapters are checked, each once for a version of its
        files. Results of loading (``loaded``), which finds more problems, take precedence. Use a
        thread.
        """
        with self._lock:
            versions = adapter_versions(root)
            results = {**self._results, **loaded}
            known = {name: old for name, old in results.items() if versions.get(name) == old[0]}
            for name in [name for name in versions if name not in known][:MAX_CHECKS_PER_LISTING]:
                problem = None
                try:
                    self.check_files(root / name, read_weights=False)
                except BrokenAdapter as broken:
                    log.warning("the adapter %s can't be loaded: %s", name, broken)
                    problem = str(broken)
                except OSError:
                    # It may be incomplete or removed. A request that names it reports the error.
                    pass
                known[name] = versions[name], problem
            self._results = known
            return {name: known[name][1] if name in known else None for name in versions}

    @cached_property
    def _base_tensor_shapes(self) -> Shapes:
        return read_base_tensor_shapes(
            self._config.model_config, self._config.load_config.download_dir
        )


def check_lora_modules(modules: Sequence[Any], vllm_config: Any) -> None:
    """Check the adapters in LORA_MODULES that are in local directories; LoRA must be enabled."""
    if not modules:
        return
    if vllm_config.lora_config is None:
        raise BrokenAdapter("LORA_MODULES needs ENABLE_LORA=1")
    checker = AdapterChecker(vllm_config)
    for module in modules:
        place, folder = f"LORA_MODULES: {module.name}", Path(module.path).expanduser()
        if folder.is_absolute() and not (folder / CONFIG).is_file():
            raise BrokenAdapter(f"{place}: there is no {CONFIG} in {folder}")
        if (folder / WEIGHTS).is_file():
            try:
                checker.check_files(folder)
            except BrokenAdapter as broken:
                raise BrokenAdapter(f"{place}: {broken}") from None


def _add_rank_suggestion(message: str) -> str:
    """Add a sufficient MAX_LORA_RANK, or vLLM's maximum, to a message that refuses a rank."""
    if not (match := RANK_MESSAGE.search(message)):
        return message
    field = pydantic_fields(LoRAConfig)["max_lora_rank"]
    ranks = sorted(map(int, literal_or_enum_values(field.annotation)))
    sufficient = next((rank for rank in ranks if rank >= int(match[1])), None)
    if sufficient is None:
        return f"{message.rstrip('.')}: vLLM takes at most {ranks[-1]}"
    return f"{message.rstrip('.')}: set MAX_LORA_RANK={sufficient}"


def check_adapter_shapes(shapes: Shapes, rank: int | None, base_shapes: Shapes) -> None:
    """Check that an adapter's matrices fit each other and the model's weights of the same names.

    A module that the model doesn't have is refused only if its name differs from one of the model's
    modules only by numbers, such as a layer's. ``rank`` is None if the modules may have different
    ranks.
    """
    if not shapes:
        raise BrokenAdapter(f"{WEIGHTS} contains no tensors")
    modules: defaultdict[str, dict[str, Shape]] = defaultdict(dict)
    for tensor, shape in shapes.items():
        # Skip other names, which vLLM checks itself, and experts, whose layout varies by model.
        if (match := TENSOR_NAME.fullmatch(tensor)) and ".experts" not in tensor:
            modules[match[1]][match[2]] = shape
    known = {name.rpartition(".")[0] for name in base_shapes}
    patterns = {NUMBER.sub("*", module) for module in known}
    for module, matrices in modules.items():
        if missing := {"A", "B"} - matrices.keys():
            raise BrokenAdapter(f"{module} has no lora_{missing.pop()}")
        if wrong := [shape for shape in matrices.values() if len(shape) != 2 or 0 in shape]:
            raise BrokenAdapter(f"{module} has a tensor of shape {list(wrong[0])}: no matrix")
        (rank_a, columns), (rows, rank_b) = matrices["A"], matrices["B"]
        if rank_a != rank_b or rank not in {None, rank_a}:
            found = f"lora_A has {rank_a} rows and lora_B {rank_b} columns"
            raise BrokenAdapter(f"{module}: {found}, but r is {rank or 'one number'}")
        if weight := base_shapes.get(f"{module}.weight"):
            # Embeddings, and the linear layers of some models, are stored transposed.
            if weight not in {(rows, columns), (columns, rows)}:
                found = f"is for a weight of {rows} x {columns}"
                raise BrokenAdapter(
                    f"{module} {found}, the model's has {' x '.join(map(str, weight))}"
                )
        elif module not in known and NUMBER.sub("*", module) in patterns:
            raise BrokenAdapter(f"the model has no {module}")


def read_base_tensor_shapes(model_config: Any, cache: str | None) -> dict[str, Shape]:
    """Return the shapes of a model's tensors by name; empty if no files are found.

    The shape of a tensor with packed weights is (). Files that can't be read are skipped. ``cache``
    is the hub's cache directory; None for the default.
    """
    shapes = {}
    folder = _local_model_folder(model_config, cache)
    for file in folder.glob("*.safetensors") if folder else ():
        with contextlib.suppress(SafetensorError, OSError), safe_open(file, "pt") as tensors:
            for name in tensors.offset_keys():
                tensor = tensors.get_slice(name)
                is_unpacked = tensor.get_dtype() in FLOAT_TYPES
                shapes[name] = tuple(tensor.get_shape()) if is_unpacked else ()
    return shapes


def _local_model_folder(model_config: Any, cache: str | None) -> Path | None:
    model = model_config.model
    if Path(model).is_dir():
        return Path(model)
    with contextlib.suppress(ValueError):  # raised if the model is not named like a repository
        config = try_to_load_from_cache(model, "config.json", cache, model_config.revision)
        return Path(config).parent if isinstance(config, str) else None
    return None


def _read_adapter_shapes(file: Path, *, read_weights: bool) -> dict[str, Shape]:
    shapes = {}
    with safe_open(file, "pt") as tensors:
        for name in tensors.offset_keys():
            tensor = tensors.get_slice(name)
            if (dtype := tensor.get_dtype()) not in FLOAT_TYPES:
                raise BrokenAdapter(f"{name} is of type {dtype}, not floating point")
            if read_weights and not torch.isfinite(tensors.get_tensor(name).float()).all():
                raise BrokenAdapter(f"{name} contains values that are not finite numbers")
            shapes[name] = tuple(tensor.get_shape())
    return shapes
