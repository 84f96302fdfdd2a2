"""The settings of docs/migration.md, read by a start: its verdicts, effects and messages."""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.pages import hold, shortened
from support.releases import of_the_pinned
from support.settings import read_settings
from support.tables.migration import Verdict
from support.tables.migration import settings as table
from support.tables.migration.settings import Different, Sent

from worker import start
from worker.engine.machine import Gpu, Machine
from worker.settings import Settings
from worker.settings.environment import hub_cache
from worker.settings.mistakes import SettingsError

PAGE = ROOT / "docs" / "migration.md"
COLUMNS = ("setting", "verdict", "what differs, or what the start says")
ARGUMENTS = ("build argument", "verdict", "what differs")


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment without variables of this machine; it is restored afterwards."""
    before = dict(os.environ)
    for name in os.environ.keys() - {"PATH", "HOME"}:
        monkeypatch.delenv(name)
    yield dict(os.environ)
    os.environ.clear()
    os.environ.update(before)


def read(**settings: str) -> start.Start:
    """Read settings from the process's environment, as a worker with four cards does."""
    for name in os.environ.keys() - {"PATH", "HOME"}:
        del os.environ[name]
    os.environ.update({"MODEL_NAME": "org/model", **settings})
    return read_settings(os.environ, Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * 4))


def of(result: start.Start) -> tuple[Any, ...]:
    """Return everything that was read."""
    settings = result.settings and result.settings.model_dump()
    return settings, *(vars(engine.vllm) for engine in result.engines)


def said(name: str, value: str) -> tuple[Verdict, str]:
    """Return what becomes of a setting, and what the start says of it."""
    try:
        (warning,) = read(**{name: value}).warnings or ("",)
    except SettingsError as refused:
        (mistake,) = refused.mistakes
        assert mistake.name == name
        return Verdict.REFUSED, mistake.advice
    verdict = Verdict.IDLE if warning else Verdict.WORKS
    return verdict, re.sub(f"^{name} (has no effect: )?", "", warning)


# vLLM's own, of LOG_CONFIG_FILE.
@pytest.mark.filterwarnings("ignore:--log-config-file is deprecated")
@pytest.mark.parametrize(
    "row",
    [
        # What is refused changes from release to release.
        pytest.param(
            row,
            id=f"{row.name}={row.value}",
            marks=[of_the_pinned] if row.verdict is Verdict.REFUSED else [],
        )
        for row in table.sent()
    ],
)
def test_a_setting_is_read_as_the_page_says(row: Sent) -> None:
    if row.verdict is not Verdict.WORKS:
        verdict, text = said(row.name, row.value)
        assert verdict is row.verdict
        assert text
        return
    needed = table.NEEDED.get(row.name, {})
    result = read(**{**needed, row.name: row.value})
    assert result.warnings == ()
    assert (of(result) == of(read(**needed))) == row.unread


@pytest.mark.parametrize("row", table.DIFFERENT, ids=lambda row: row.name)
def test_what_differs_is_as_the_page_says(row: Different, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("seed: 7\nmax-model-len: 8192\ngpu_memory_utilization: 0.9\n")
    given = {name: value.replace("<config>", str(config)) for name, value in row.given.items()}
    result = read(**given)
    assert result.warnings == ()
    assert {path: at(result, path) for path in row.effects} == row.effects


def at(result: start.Start, path: str) -> Any:
    """Follow a path from the worker's settings, or from vLLM's arguments."""
    roots = {"settings": result.settings, "vllm": result.arguments.vllm}

    def follow(held: Any, step: str) -> Any:
        if isinstance(held, list):
            return held[int(step)]
        return held[step] if isinstance(held, dict) else getattr(held, step)

    return functools.reduce(follow, path.split("."), roots)


@pytest.mark.parametrize("form", table.FORMS)
def test_an_endpoint_that_the_hubs_form_made_starts(form: str) -> None:
    given = table.FORMS[form]
    warned = {warning.partition(" ")[0] for warning in read(**given).warnings}
    assert warned == table.FORMS_IDLE & given.keys()


def test_a_setting_that_is_required_is_missed() -> None:
    with pytest.raises(SettingsError, match="MODEL_NAME is not set"):
        read(MODEL_NAME="")


def test_weights_that_were_downloaded_there_are_where_they_are_looked_for(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    Settings.from_env({"MODEL_NAME": "m", "BASE_PATH": str(tmp_path)}).export(environ)
    assert hub_cache(environ) == tmp_path / table.WEIGHTS


def test_arguments_of_the_build_are_as_the_page_says() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    words = [line.removeprefix("ARG ") for line in lines if line.startswith("ARG ")]
    defaults = dict(word.partition("=")[::2] for word in words)
    for row in table.BUILD:
        assert (row.name in defaults) == (row.verdict is not Verdict.IDLE), row.name
        assert row.default is None or defaults[row.name] == row.default
    hold(PAGE, ARGUMENTS, [(f"`{row.name}`", row.verdict, row.differs) for row in table.BUILD])


def test_no_name_has_two_verdicts() -> None:
    names = [row.name for row in table.sent() if row.verdict is not Verdict.REFUSED]
    names += [row.name for row in table.DIFFERENT]
    assert sorted(names) == sorted(set(names))
    assert table.VALUES.keys() <= {*names}


@of_the_pinned
def test_the_pages_table_is_what_a_start_says() -> None:
    cells: dict[tuple[str, str], list[str]] = {}
    for row in table.sent():
        if row.verdict is not Verdict.WORKS:
            verdict, text = said(row.name, row.value)
            refused = verdict is Verdict.REFUSED
            shown = f"{row.name}={row.value}" if refused else row.name
            cells.setdefault((verdict, shortened(text)), []).append(shown)
    differing: dict[tuple[str, str], list[str]] = {}
    for different in table.DIFFERENT:
        differing.setdefault((Verdict.DIFFERS, different.differs), []).append(different.name)
    rows = [(named(names), *key) for key, names in cells.items()]
    rows[len(table.REFUSED) : len(table.REFUSED)] = [
        (named(names), *key) for key, names in differing.items()
    ]
    rows += [
        (f"{about}: {named(names.split())}", Verdict.WORKS, "")
        for about, names in table.WORKS.items()
    ]
    libraries = named(table.FOR_LIBRARIES)
    rows.append((libraries, Verdict.WORKS, "Libraries read them"))
    passed = "Nobody reads them, as in the release of August 2026"
    rows.append((named(table.PASSED_OVER), Verdict.IDLE, passed))
    hold(PAGE, COLUMNS, rows)


def named(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
