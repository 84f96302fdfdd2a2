"""The table of settings; its rows for vLLM's options are checked against vLLM in tests/contract."""

from collections import Counter

import pytest
from table import LIBRARIES, ROWS, SECTIONS, Row, row

from worker.settings import Settings
from worker.settings.examples import EXAMPLES, example
from worker.settings.names import ALIASES, FOR_LIBRARIES, REMOVED

NAMES = {setting.name for setting in ROWS}


def test_every_setting_of_the_worker_has_a_row() -> None:
    assert {name.upper() for name in Settings.model_fields} - NAMES == set()


def test_every_other_name_of_an_option_has_a_row() -> None:
    assert ALIASES.keys() - NAMES == set()


def test_every_variable_for_libraries_has_a_row_among_those_of_libraries() -> None:
    listed = {setting.name for setting in ROWS if setting.section == LIBRARIES}
    assert FOR_LIBRARIES - listed == set()


def test_every_example_is_of_a_row() -> None:
    assert EXAMPLES.keys() - NAMES == set()


def test_every_name_has_one_row() -> None:
    counts = Counter(setting.name for setting in ROWS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_row_is_for_a_removed_setting() -> None:
    assert NAMES & REMOVED.keys() == set()


def test_rows_stand_together_by_section() -> None:
    sections = [setting.section for setting in ROWS]
    assert sections == sorted(sections, key=SECTIONS.index)
    assert set(sections) == set(SECTIONS)


@pytest.mark.parametrize("setting", ROWS, ids=lambda setting: setting.name)
def test_a_meaning_is_one_sentence(setting: Row) -> None:
    assert setting.title
    assert setting.meaning.endswith(".")
    assert not setting.meaning.startswith(" ")
    assert "  " not in setting.meaning
    assert ". " not in setting.meaning


def test_the_form_does_not_ask_for_what_the_platform_sets() -> None:
    for name in ("RUNPOD_ENDPOINT_ID", "RUNPOD_ENDPOINT_BASE_URL", "RUNPOD_VOLUME_ID"):
        platforms = row(name)
        assert platforms
        assert not platforms.form


def test_advanced_settings_of_the_form_are_in_the_form() -> None:
    assert [setting.name for setting in ROWS if setting.advanced and not setting.form] == []


def test_an_example_is_found_by_the_settings_name_and_by_the_options() -> None:
    assert example("LIMIT_MM_PER_PROMPT") == "image=1,video=0"
    assert example("MODEL") == example("MODEL_NAME") == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("name", ["NO_SUCH_SETTING", "ENFORCE_EAGER"])
def test_a_row_has_no_example_where_the_types_would_do(name: str) -> None:
    assert example(name) is None
