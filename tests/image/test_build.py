"""Tests that build the Dockerfile on a stand-in for vLLM's image, with models from loopback."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image.buildah import Buildah, Image, Ran, names
from safetensors.numpy import save_file
from support import ROOT
from support.hub.server import MEMBER, Hub

STANDIN = "localhost/standin"
MODEL, TOKENIZER = "acme/private", "acme/tokens"
CACHE = "models/huggingface-cache/hub/models--acme--private"
MANIFEST, HANDLER = "local_model_args.json", "src/handler.py"
ARGUMENTS = {
    "MODEL_NAME": MODEL,
    "MODEL_REVISION": "v1",
    "TOKENIZER_NAME": TOKENIZER,
    "QUANTIZATION": "awq",
}
# A text that only the files of the models contain.
MARK = "NotToBeOverlooked"
LABELS = ("title", "description", "licenses", "version")

Build = Callable[..., Ran]


@pytest.fixture(scope="session", autouse=True)
def build_models(loopback_hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a private model and a tokenizer. contract/test_image.py has other models."""
    folder = tmp_path_factory.mktemp("models")
    whole, tokens = folder / "whole", folder / "tokens"
    for directory in (whole, tokens):
        directory.mkdir()
        (directory / "tokenizer.json").write_text("{}")
    (whole / "config.json").write_text(json.dumps({"architectures": [MARK]}))
    save_file({"weight": np.arange(256, dtype=np.float32)}, whole / "model.safetensors")
    loopback_hub.add(MODEL, whole, private=True).revisions["v1"] = whole
    loopback_hub.add(TOKENIZER, tokens)
    return folder


@pytest.fixture(scope="session")
def general_image(build: Build, buildah: Buildah) -> Image:
    assert build("general").returncode == 0
    return buildah.image("general")


@pytest.fixture(scope="session")
def baked_image(build: Build, buildah: Buildah) -> Image:
    built = build("baked", **ARGUMENTS)
    assert built.returncode == 0, built.stdout + built.stderr
    return buildah.image("baked")


def run_python(buildah: Buildah, code: str) -> str:
    """Run code in a container of the baked image; return its output."""
    ran = buildah.run("baked", "python", "-c", code)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_general_image_starts_the_worker_and_contains_no_model(
    general_image: Image, buildah: Buildah
) -> None:
    started = buildah.run("general", *general_image.config["config"]["Cmd"], "--help")
    assert started.stdout.startswith("usage: handler.py")
    assert not any(MANIFEST in names(layer) for layer in general_image.layers)


def test_the_image_contains_the_measurement_of_a_gpu(
    buildah: Buildah, general_image: Image
) -> None:
    code = "import emulator, proof.machine.plan"
    ran = buildah.run("general", "sh", "-c", f"cd /src && python -c '{code}'")
    assert ran.returncode == 0, ran.stderr


def test_an_image_has_descriptive_labels_and_one_variable_more_than_its_base(
    general_image: Image, buildah: Buildah
) -> None:
    config = general_image.config["config"]
    labels = [config["Labels"].get(f"org.opencontainers.image.{name}") for name in LABELS]
    assert all(labels)
    before = buildah.image(STANDIN).config["config"]["Env"]
    assert set(config["Env"]) - set(before) == {"PYTHONUNBUFFERED=1"}


def test_a_baked_image_contains_the_weights_and_describes_them_to_the_worker(
    baked_image: Image, buildah: Buildah, build_models: Path
) -> None:
    manifest = json.loads(run_python(buildah, f"print(open('/{MANIFEST}').read())"))
    assert manifest["settings"] == ARGUMENTS
    model, tokenizer = manifest["models"]
    assert (model["model"], model["revision"]) == (MODEL, "v1")
    assert (tokenizer["model"], tokenizer["revision"]) == (TOKENIZER, None)
    assert model["place"] == f"/{CACHE}/snapshots/{model['commit']}"
    read = f"print(open('{model['place']}/model.safetensors', 'rb').read().hex())"
    weights = (build_models / "whole" / "model.safetensors").read_bytes()
    assert bytes.fromhex(run_python(buildah, read)) == weights


def test_the_token_is_nowhere_in_the_image(baked_image: Image) -> None:
    assert baked_image.holds(MARK), "nothing in a layer would be found"
    assert baked_image.holds("MODEL_NAME"), "nothing in the history would be found"
    assert not baked_image.holds(MEMBER)


def test_no_file_of_the_download_remains_in_the_image(baked_image: Image) -> None:
    there = names(baked_image.layer_of(MANIFEST))
    # An empty directory remains at the path of the secret.
    outside = {name for name in there if not name.startswith("models")} - {"run", "run/secrets"}
    assert outside == {MANIFEST}
    assert not [name for name in there if name.endswith(".partial") or "/lease-" in name]


def test_a_change_of_the_source_does_not_repeat_the_download(
    baked_image: Image,
    build: Build,
    buildah: Buildah,
    context: Path,
    loopback_hub: Hub,
    tmp_path: Path,
) -> None:
    shutil.copytree(context, tmp_path / "changed")
    handler = tmp_path / "changed" / "src" / "handler.py"
    handler.write_text(handler.read_text() + "# Changed.\n")
    before = len(loopback_hub.requests)
    assert build("changed", context=tmp_path / "changed", **ARGUMENTS).returncode == 0
    changed = buildah.image("changed")
    assert changed.layer_of(MANIFEST).name == baked_image.layer_of(MANIFEST).name
    assert changed.layer_of(HANDLER).name != baked_image.layer_of(HANDLER).name
    # The layer of the weights is below the layer of the source.
    layers = [layer.name for layer in changed.layers]
    places = [layers.index(changed.layer_of(name).name) for name in (MANIFEST, HANDLER)]
    assert places == sorted(places)
    assert len(loopback_hub.requests) == before


def test_a_model_at_the_mount_point_of_a_volume_warns(build: Build) -> None:
    built = build("hidden", MODEL_NAME=MODEL, BASE_PATH="/runpod-volume")
    assert built.returncode == 0
    assert "BASE_PATH=/runpod-volume: a network volume, mounted there, hides" in built.stdout


def test_the_cuda_version_of_an_earlier_worker_fails_the_build_with_advice(
    build: Build,
) -> None:
    built = build("cuda", WORKER_CUDA_VERSION="12.1.0")
    assert built.returncode != 0
    assert "WORKER_CUDA_VERSION=12.1.0 has no effect" in built.stderr
    assert "select the image with VLLM_VERSION" in built.stderr


def test_make_image_passes_its_variables_and_labels_the_version(
    buildah: Buildah, loopback_hub: Hub
) -> None:
    given = {"BASE_IMAGE": STANDIN, "HF_ENDPOINT": loopback_hub.endpoint, "MODEL_NAME": MODEL}
    environ = {**buildah.environ, "BUILDER": "buildah", "HF_TOKEN": MEMBER, **given}
    command = ["make", "-s", "image", "IMAGE=localhost/made", "TAG=1.2.3"]
    made = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    image = buildah.image("localhost/made:1.2.3")
    assert image.config["config"]["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert any(f"{CACHE}/refs/main" in names(layer) for layer in image.layers)
    assert not image.holds(MEMBER)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    code = "print(open('/src/commit').read())"
    commit = buildah.run("localhost/made:1.2.3", "python", "-c", code).stdout.strip()
    assert len(commit) >= 12
    assert head.stdout.decode().startswith(commit.removesuffix("-dirty"))
