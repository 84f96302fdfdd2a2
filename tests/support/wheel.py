"""A plugin of pytest for nox -s test_wheel: the client comes from its wheel, nothing from src/."""

import sys
from pathlib import Path

import pytest

import llm_worker_client
from support import ROOT

PACKAGES = ("llm_worker_client", "llm_worker_console")
# The wheel leaves them out.
_LEFT_OUT = {"README.md"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of both packages in a folder, by their paths."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for package in PACKAGES
        for file in (folder / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.name not in _LEFT_OUT
    }


def pytest_sessionstart() -> None:
    installed = Path(llm_worker_client.__file__).parents[1]
    if installed.name != "site-packages":
        pytest.exit(f"the client is imported from {installed}, not from its wheel", returncode=3)
    found, expected = contents(installed), contents(ROOT / "src")
    wrong = sorted(name for name in found | expected if found.get(name) != expected.get(name))
    if wrong:
        pytest.exit(f"the wheel differs from src/: {', '.join(wrong)}", returncode=3)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files = sorted(file for file in _imported_files() if _is_installed(file))
    terminalreporter.write_line(f"{len(files)} modules of the client came from its wheel")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a test has put src/ on the path."""
    if not all(_is_installed(file) for file in _imported_files()):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def _imported_files() -> set[Path]:
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in PACKAGES]
    return {Path(file) for module in modules if (file := getattr(module, "__file__", None))}


def _is_installed(file: Path) -> bool:
    return "site-packages" in file.parts
