"""`handler.py --check --gpu` as an operator runs it, on a machine without a GPU."""

import json
import shutil
from functools import partial
from pathlib import Path

from support.hub.server import hub
from support.processes.commands import HANDLER, HOME, run
from support.processes.side_by_side import side_by_side
from support.tables.models import RECORDED

# Tensors of a file of weights: a header of about 2 MB.
TENSORS = 20_000
# Bytes of a file that the hub's library asks for before it knows how long the header is.
FIRST = 100_001


def test_gpus_are_judged_without_one(demo_model: Path, tmp_path: Path) -> None:
    folder = RECORDED["GQA"].write(tmp_path / "model")
    for file in demo_model.glob("tokenizer*"):
        shutil.copy(file, folder)
    model = {"MODEL_NAME": str(folder)}
    prices = tmp_path / "prices.json"
    prices.write_text('{"AMPERE_24": 0.43, "AMPERE_48": 0.79}')
    words = {
        "all": ("--check", "--gpu", "all", "--prices", str(prices)),
        "one": ("--check", "--gpu", "A4000"),
        "unknown": ("--check", "--gpu", "A4O"),
    }

    environ = {**HOME, **model}
    commands = {name: partial(run, environ, *HANDLER, *line) for name, line in words.items()}
    with side_by_side(commands) as ended:
        every, one, unknown = map(ended, words)
    assert every.returncode == 0, every.stderr
    rows = [line.split() for line in every.stdout.splitlines()]
    assert ["AMPERE_24", "shorter", "32272", "1", "0.43"] in rows
    assert ["AMPERE_48", "fits", "131072", "1", "0.79"] in rows
    assert "\n\nAMPERE_48 costs least of those that hold the whole context.\n\n" in every.stdout
    assert every.stdout.endswith(
        "\nThe worker would start on those that hold the model, as far as is known: 1 unknown.\n"
    )
    assert one.returncode == 1
    assert "RTX A4000: weights 15.0 GiB" in one.stdout
    assert one.stdout.endswith("\nThe worker would not start: 1 failure, 1 unknown.\n")
    assert (unknown.returncode, "did you mean A40" in unknown.stderr) == (1, True)
    assert "Traceback" not in every.stderr + one.stderr + unknown.stderr


def shard(path: Path, number: int) -> int:
    """Write a file of weights whose data is a hole; return the bytes before it."""
    each = 2 * 1024
    entries = {
        f"model.layers.{number}.mlp.experts.{place}.down_proj.weight": {
            "dtype": "BF16",
            "shape": [each // 2],
            "data_offsets": [place * each, (place + 1) * each],
        }
        for place in range(TENSORS)
    }
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + TENSORS * each)
    return 8 + len(header)


def test_no_weights_are_downloaded_for_the_verdict(demo_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    ignored = shutil.ignore_patterns("model.safetensors", "recipe.sha256")
    shutil.copytree(demo_model, folder, ignore=ignored)
    names = [f"model-{number}-of-00002.safetensors" for number in ("00001", "00002")]
    headers = {name: shard(folder / name, number) for number, name in enumerate(names)}
    index = {"metadata": {}, "weight_map": {f"of {name}": name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with hub() as running:
        running.add("org/large", folder)
        home = tmp_path / "home"
        environ = {**HOME, "HF_ENDPOINT": running.endpoint, "HF_HOME": str(home)}
        environ |= {"MODEL_NAME": "org/large", "BASE_PATH": str(tmp_path / "volume")}
        checked = run(environ, *HANDLER, "--check", "--gpu", "ADA_24")
        fetched = {sent.path: running.transferred("org/large", sent.path) for sent in running.sent}
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # All of both headers were read: 40 000 tensors of 1024 elements of 16 bits.
    assert "weights 78.1 MiB" in " ".join(checked.stdout.split())
    assert fetched.keys() >= headers.keys()
    for path, size in fetched.items():
        assert path in headers or path.endswith(".json"), path
        if path in headers:
            assert size <= headers[path] + FIRST
            assert size < (folder / path).stat().st_size / 4
    assert not [*tmp_path.joinpath("volume").rglob("*.safetensors")]
    assert not [*home.rglob("*.safetensors")]
