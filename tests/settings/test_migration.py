"""The settings of docs/migration.md, read by a start: its verdicts, effects and messages."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest
import vllm.envs
from support import ROOT
from support.pages import check_table, shortened
from support.processes.commands import HOME
from support.releases import of_the_pinned
from support.settings import gpus, read_settings
from support.tables.migration import Verdict
from support.tables.migration import settings as table
from support.tables.migration.settings import Different, Working

from worker.engine import start
from worker.settings import Settings, names
from worker.settings.mistakes import SettingsError

PAGE = ROOT / "docs" / "migration.md"
COLUMNS = ("setting", "verdict", "what differs, or what the start says")
ARGUMENTS = ("build argument", "verdict", "what differs")


def read(**settings: str) -> start.Start:
    os.environ.clear()
    os.environ.update({**HOME, "MODEL_NAME": "org/model", **settings})
    return read_settings(os.environ, gpus(4))


def at(result: start.Start, path: str) -> Any:
    """Follow a path from the worker's settings, or from vLLM's arguments."""
    roots = {"settings": result.settings, "vllm": result.arguments.vllm}

    def follow(found: Any, step: str) -> Any:
        if isinstance(found, list):
            return found[int(step)]
        return found.get(step) if isinstance(found, dict) else getattr(found, step, None)

    found = functools.reduce(follow, path.split("."), roots)
    if hasattr(found, "get_secret_value"):
        return found.get_secret_value()
    if isinstance(found, tuple):
        return [*found]
    return str(found) if isinstance(found, Path) else found


# vLLM's own, of LOG_CONFIG_FILE.
@pytest.mark.filterwarnings("ignore:--log-config-file is deprecated")
@pytest.mark.parametrize("row", table.WORKING, ids=lambda row: row.name)
def test_a_setting_has_its_effect_and_no_warning(row: Working) -> None:
    assert at(read(**row.needed), row.path) != row.effect
    result = read(**{**row.needed, row.name: row.value})
    assert at(result, row.path) == row.effect
    assert result.warnings == ()


@pytest.mark.parametrize("row", table.DIFFERENT, ids=lambda row: row.name)
def test_what_differs_is_as_the_page_says(row: Different, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("seed: 7\nmax-model-len: 8192\ngpu_memory_utilization: 0.9\n")
    written = {name: value.replace("<config>", str(config)) for name, value in row.settings.items()}
    result = read(**written)
    assert result.warnings == ()
    assert {path: at(result, path) for path in row.effects} == row.effects


def test_variables_of_libraries_and_of_other_software_change_nothing_that_is_read() -> None:
    def of(result: start.Start) -> Any:
        return result.settings.model_dump(), vars(result.arguments.vllm), result.warnings

    assert of(read(**table.OF_LIBRARIES, **table.PASSED_OVER)) == of(read())


@pytest.mark.parametrize("form", table.FORMS)
def test_an_endpoint_that_the_hubs_form_made_starts(form: str) -> None:
    settings = table.FORMS[form]
    warned = {warning.partition(" ")[0] for warning in read(**settings).warnings}
    assert warned == table.FORMS_IDLE & settings.keys()


def test_settings_that_a_warning_advises_exist() -> None:
    settings = {*read().options, *names.ALIASES, *map(str.upper, Settings.model_fields)}
    name = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
    advised = {found for advice in names.REMOVED.values() for found in name.findall(advice)}
    assert advised - settings - {*vllm.envs.environment_variables} == set()
    assert len(advised) > 10


# The page:


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


def test_what_the_page_says_to_have_no_effect_warns() -> None:
    verdicts = {name: said(name, value)[0] for name, value in table.IDLE}
    assert {name for name, verdict in verdicts.items() if verdict is not Verdict.IDLE} == set()


@of_the_pinned
def test_the_pages_table_is_what_a_start_says() -> None:
    rows: dict[tuple[str, str], list[str]] = {}
    for name, value in table.REFUSED:
        verdict, text = said(name, value)
        rows.setdefault((verdict, shortened(text)), []).append(f"{name}={value}")
    for different in table.DIFFERENT:
        rows.setdefault((Verdict.DIFFERS, different.differs), []).append(different.name)
    for name, value in table.IDLE:
        verdict, text = said(name, value)
        rows.setdefault((verdict, shortened(text)), []).append(name)
    cells = [(listed(names_), *key) for key, names_ in rows.items()]
    cells += [
        (f"{about}: {listed(names_)}", Verdict.WORKS, "") for about, names_ in table.WORKS.items()
    ]
    cells.append((listed(table.OF_LIBRARIES), Verdict.WORKS, "Libraries read them"))
    passed = "Nobody reads them, as in the release of August 2026"
    cells.append((listed(table.PASSED_OVER), Verdict.IDLE, passed))
    check_table(PAGE, COLUMNS, cells)


def test_arguments_of_the_build_are_as_the_page_says() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    words = [line.removeprefix("ARG ") for line in lines if line.startswith("ARG ")]
    defaults = dict(word.partition("=")[::2] for word in words)
    for row in table.BUILD:
        assert (row.name in defaults) == (row.verdict is not Verdict.IDLE), row.name
        assert row.default is None or defaults[row.name] == row.default
    check_table(
        PAGE, ARGUMENTS, [(f"`{row.name}`", row.verdict, row.differs) for row in table.BUILD]
    )


def listed(written: Any) -> str:
    return ", ".join(f"`{name}`" for name in written)
