"""Tests that a worker's startup treats settings as docs/migration.md states."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest
import vllm.envs
from support import ROOT
from support.pages import check_table, shorten
from support.processes.commands import HOME
from support.releases import needs_pinned_vllm
from support.settings import machine_with_gpus, read_settings
from support.tables.migration import Verdict
from support.tables.migration import settings as table
from support.tables.migration.settings import DifferentSetting, WorkingSetting

from worker.engine.start import Start
from worker.settings import Settings, names
from worker.settings.mistakes import SettingsError

PAGE = ROOT / "docs" / "migration.md"
COLUMNS = ("setting", "verdict", "difference, or message at startup")
ARGUMENTS = ("build argument", "verdict", "difference")


def read(**settings: str) -> Start:
    os.environ.clear()
    os.environ.update({**HOME, "MODEL_NAME": "org/model", **settings})
    return read_settings(os.environ, machine_with_gpus(4))


def read_path(result: Start, path: str) -> Any:
    """Return the value at a path that starts at the worker's settings or at vLLM's arguments."""
    roots = {"settings": result.settings, "vllm": result.main_arguments.vllm_args}

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


# vLLM raises this warning for LOG_CONFIG_FILE.
@pytest.mark.filterwarnings("ignore:--log-config-file is deprecated")
@pytest.mark.parametrize("row", table.WORKING_SETTINGS, ids=lambda row: row.name)
def test_a_setting_has_its_effect_and_no_warning(row: WorkingSetting) -> None:
    assert read_path(read(**row.needed), row.path) != row.effect
    result = read(**{**row.needed, row.name: row.value})
    assert read_path(result, row.path) == row.effect
    assert result.warnings == ()


@pytest.mark.parametrize("row", table.DIFFERENT_SETTINGS, ids=lambda row: row.name)
def test_a_setting_with_a_difference_has_the_effect_that_the_page_states(
    row: DifferentSetting, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("seed: 7\nmax-model-len: 8192\ngpu_memory_utilization: 0.9\n")
    written = {name: value.replace("<config>", str(config)) for name, value in row.settings.items()}
    result = read(**written)
    assert result.warnings == ()
    assert {path: read_path(result, path) for path in row.effects} == row.effects


def test_variables_of_libraries_and_of_other_software_change_no_setting() -> None:
    def read_values(result: Start) -> Any:
        return result.settings.model_dump(), vars(result.main_arguments.vllm_args), result.warnings

    assert read_values(read(**table.LIBRARY_SETTINGS, **table.IGNORED)) == read_values(read())


@pytest.mark.parametrize("form", table.FORMS)
def test_the_settings_of_the_hubs_form_are_accepted(form: str) -> None:
    settings = table.FORMS[form]
    warned_names = {warning.partition(" ")[0] for warning in read(**settings).warnings}
    assert warned_names == table.FORMS_IDLE & settings.keys()


def test_settings_named_in_advice_exist() -> None:
    settings = {
        *read().option_names,
        *names.OPTION_BY_SETTING,
        *map(str.upper, Settings.model_fields),
    }
    name = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
    named_settings = {
        found for advice in names.REMOVED_SETTINGS.values() for found in name.findall(advice)
    }
    assert named_settings - settings - {*vllm.envs.environment_variables} == set()
    assert len(named_settings) > 10


# The page:


def find_verdict(name: str, value: str) -> tuple[Verdict, str]:
    """Return the verdict on a setting, and its message at startup."""
    try:
        (warning,) = read(**{name: value}).warnings or ("",)
    except SettingsError as refused:
        (mistake,) = refused.mistakes
        assert mistake.name == name
        return Verdict.REFUSED, mistake.advice
    verdict = Verdict.IDLE if warning else Verdict.WORKS
    return verdict, re.sub(f"^{name} (has no effect: )?", "", warning)


def test_settings_that_the_page_lists_without_effect_cause_a_warning() -> None:
    verdicts = {name: find_verdict(name, value)[0] for name, value in table.IDLE}
    assert {name for name, verdict in verdicts.items() if verdict is not Verdict.IDLE} == set()


@needs_pinned_vllm
def test_the_table_of_the_page_matches_the_messages_at_startup() -> None:
    rows: dict[tuple[str, str], list[str]] = {}
    for name, value in table.REFUSED:
        verdict, text = find_verdict(name, value)
        rows.setdefault((verdict, shorten(text)), []).append(f"{name}={value}")
    for different in table.DIFFERENT_SETTINGS:
        rows.setdefault((Verdict.DIFFERS, different.differs), []).append(different.name)
    settings_page = (ROOT / "docs" / "settings.md").read_text()
    explained = [name for name, _ in table.IDLE if f"`{name}`" in settings_page]
    for name, value in table.IDLE:
        if name not in explained:
            verdict, text = find_verdict(name, value)
            rows.setdefault((verdict, shorten(text)), []).append(name)
    check_table(PAGE, COLUMNS, [(format_names(names_), *key) for key, names_ in rows.items()])
    (ignored,) = re.findall(r"it ignores (.+) silently", PAGE.read_text())
    assert set(re.findall(r"`(\w+)`", ignored)) == {*table.IGNORED}


def test_the_build_arguments_match_the_page() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    words = [line.removeprefix("ARG ") for line in lines if line.startswith("ARG ")]
    defaults = dict(word.partition("=")[::2] for word in words)
    for row in table.BUILD:
        assert (row.name in defaults) == (row.verdict is not Verdict.IDLE), row.name
        assert row.default is None or defaults[row.name] == row.default
    rows: dict[tuple[str, str], list[str]] = {}
    for row in table.BUILD:
        rows.setdefault((row.verdict, row.differs), []).append(row.name)
    cells = [(format_names(names_), *key) for key, names_ in rows.items()]
    check_table(PAGE, ARGUMENTS, cells)


def format_names(written: Any) -> str:
    return ", ".join(f"`{name}`" for name in written)
