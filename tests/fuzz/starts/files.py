"""Draws damage to the files of a model: missing, empty, cut and foreign ones, and other layouts."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from support.models.damaged import CONFIG, INDEX, WEIGHTS

from fuzz.starts.draft import MEDIA, MODEL, POOLING, TEXT, USUAL, Draft, write_config

# A pointer of Git LFS, which a clone without `git lfs` has in place of a large file.
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"

# Names of weights that vLLM doesn't read, or reads only in another format.
OTHER_NAMES = (
    "consolidated.safetensors model.fp16.safetensors weights.safetensors "
    "original/model.safetensors model.safetensors.part MODEL.SAFETENSORS"
).split()
# Files that publishers upload next to the weights.
ADDITIONAL_NAMES = (
    "consolidated.safetensors model.fp16.safetensors adapter_model.safetensors optimizer.pt "
    "training_args.bin onnx/model.onnx mmproj.safetensors"
).split()


def draw_missing_files(draft: Draft) -> None:
    directory = draft.copy_base()
    for _ in range(draft.rng.choice((1, 1, 2))):
        draft.choose_file(directory).unlink()


def draw_empty_file(draft: Draft) -> None:
    directory = draft.copy_base()
    path = draft.choose_file(directory)
    contents = ("", "{}", "[]", "null", "\ufeff{}") if path.suffix == ".json" else ("", "\n")
    path.write_text(draft.choose(contents, "contains {!r}"))


def draw_cut_file(draft: Draft) -> None:
    directory = draft.copy_base()
    path = draft.choose_file(directory)
    content = path.read_bytes()
    path.write_bytes(content[: draft.rng.randrange(len(content))])


def draw_foreign_file(draft: Draft) -> None:
    """Replace a file by the same one of another model."""
    directory = draft.copy_base()
    path = draft.choose_file(directory)
    others = [name for name in (*TEXT, *POOLING, *MEDIA) if name != directory.name]
    name = path.relative_to(directory)
    while not (other := draft.bases.get(draft.rng.choice(others)) / name).exists():
        others.remove(other.parts[-1 - len(name.parts)])
        if not others:
            return
    draft.notes.append(f"of {other.parts[-1 - len(name.parts)]}")
    shutil.copy(other, path)


def draw_pointer(draft: Draft) -> None:
    """Leave pointers of Git LFS in place of some files, as a clone without it does."""
    directory = draft.copy_base()
    if draft.is_chosen(0.2, "with an adapter"):
        draft.add_adapter()
        directory = draft.folder / "adapter"
    paths = [draft.choose_file(directory) for _ in range(draft.rng.choice((1, 1, 3)))]
    for path in paths:
        digest = f"{draft.rng.getrandbits(256):064x}"
        path.write_text(POINTER.format(digest=digest, size=path.stat().st_size))


def _make_cache(draft: Draft, directory: Path) -> None:
    """Move the model to where the hub's library stores downloads, and set the cache's folder."""
    cache = draft.folder / "models--org--name"
    commit = f"{draft.rng.getrandbits(160):040x}"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "blobs").mkdir()
    directory.rename(cache / "snapshots" / commit)
    (cache / "refs" / "main").write_text(commit)
    names = ("", "snapshots", f"snapshots/{commit}")
    draft.settings[MODEL] = str(cache / draft.choose(names, "set to {!r}"))


def _make_pipeline(_: Draft, directory: Path) -> None:
    """Move the model into a part of a pipeline for images, in diffusers' format."""
    parts = [path for path in directory.iterdir() if path.is_file()]
    encoder = directory / "text_encoder"
    encoder.mkdir()
    for path in parts:
        path.rename(encoder / path.name)
    (directory / "transformer").mkdir()
    shutil.copy(encoder / WEIGHTS, directory / "transformer" / "diffusion_model.safetensors")
    index = {"_class_name": "FluxPipeline", "text_encoder": ["transformers", "LlamaModel"]}
    write_config(directory, index, "model_index.json")


def _write_index(draft: Draft, directory: Path) -> None:
    """Write an index of shards, of which some may be missing."""
    tensors = load_file(directory / WEIGHTS)
    names = sorted(tensors)
    shards = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for part, shard in enumerate(shards):
        chosen = {name: tensors[name] for name in names[part::2]}
        save_file(chosen, directory / shard, {"format": "pt"})
    weight_map = {name: shards[number % 2] for number, name in enumerate(names)}
    write_config(directory, {"metadata": {}, "weight_map": weight_map}, INDEX)
    match draft.choose(("whole", "one shard", "no shards", "both", "a foreign index", "no map")):
        case "whole":
            (directory / WEIGHTS).unlink()
        case "one shard":
            (directory / WEIGHTS).unlink()
            (directory / shards[0]).unlink()
        case "no shards":
            for name in (WEIGHTS, *shards):
                (directory / name).unlink()
        case "a foreign index":
            (directory / WEIGHTS).unlink()
            foreign = dict.fromkeys(names, "other.safetensors")
            write_config(directory, {"metadata": {}, "weight_map": foreign}, INDEX)
        case "no map":
            (directory / WEIGHTS).unlink()
            write_config(directory, {"metadata": {}}, INDEX)


def _write_torch(draft: Draft, directory: Path) -> None:
    names = ("pytorch_model.bin", "pytorch_model.bin", "model.pt", "consolidated.00.pth")
    name = draft.choose(names)
    torch.save(load_tensors(directory / WEIGHTS), directory / name)
    if not draft.is_chosen(0.2, "and safetensors"):
        (directory / WEIGHTS).unlink()


def _set_file(draft: Draft, directory: Path) -> None:
    name = draft.choose((WEIGHTS, CONFIG), "set to the file {}")
    draft.settings[MODEL] = str(directory / name)


def _set_parent(draft: Draft, _: Path) -> None:
    draft.settings[MODEL] = str(draft.folder)


def _write_gguf(draft: Draft, directory: Path) -> None:
    path = directory / "model-Q4_K_M.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + draft.rng.randbytes(1_000))
    if draft.is_chosen(0.7, "only GGUF"):
        (directory / WEIGHTS).unlink()
    if draft.is_chosen(0.4, "set to the file"):
        draft.settings[MODEL] = str(path)


def _rename_weights(draft: Draft, directory: Path) -> None:
    path = directory / draft.choose(OTHER_NAMES)
    path.parent.mkdir(exist_ok=True)
    (directory / WEIGHTS).rename(path)


def _add_weights(draft: Draft, directory: Path) -> None:
    """Add files that a publisher uploads next to the weights."""
    other = draft.bases.get("gpt2") / WEIGHTS
    path = directory / draft.choose(ADDITIONAL_NAMES, "also {}")
    path.parent.mkdir(exist_ok=True)
    shutil.copy(other, path)


def _break_links(draft: Draft, directory: Path) -> None:
    """Replace a file by a link whose target is missing, as after an interrupted copy."""
    path = draft.choose_file(directory)
    path.unlink()
    path.symlink_to(f"../../blobs/{path.name}")


def _nest(draft: Draft, directory: Path) -> None:
    (directory / "checkpoint-100").mkdir()
    for path in [path for path in directory.iterdir() if path.is_file()]:
        path.rename(directory / "checkpoint-100" / path.name)
    if draft.is_chosen(0.5, "config.json also outside"):
        shutil.copy(directory / "checkpoint-100" / CONFIG, directory / CONFIG)


def _deny(draft: Draft, directory: Path) -> None:
    path = draft.choose_file(directory)
    path.unlink()
    path.mkdir()


LAYOUTS: Mapping[str, Callable[[Draft, Path], None]] = {
    "a folder of the hub's cache": _make_cache,
    "a pipeline of diffusers": _make_pipeline,
    "shards": _write_index,
    "weights of torch": _write_torch,
    "a file as the model": _set_file,
    "the parent folder": _set_parent,
    "GGUF": _write_gguf,
    "renamed weights": _rename_weights,
    "additional weights": _add_weights,
    "a dangling link": _break_links,
    "a nested directory": _nest,
    "a folder in place of a file": _deny,
}


def draw_layout(draft: Draft) -> None:
    directory = draft.copy_base(*USUAL)
    LAYOUTS[draft.choose([*LAYOUTS])](draft, directory)
