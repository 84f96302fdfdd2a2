"""Names of settings: removed and misspelled names, and the names in the table of settings."""

from collections import Counter

import pytest
from table import LIBRARIES, ROWS, SECTIONS, row

from worker.settings import Settings, history
from worker.settings.examples import EXAMPLES, example_value
from worker.settings.history import Removal
from worker.settings.names import (
    CANONICAL_NAMES,
    CORRECTIONS,
    LIBRARY_VARIABLES,
    OPTION_BY_SETTING,
    PLATFORM_SETTINGS,
    REMOVED_SETTINGS,
    SPECULATIVE_KEYS,
    SettingNames,
    guess_setting,
)

OWN = frozenset({"MODEL_NAME", "HF_TOKEN", "MAX_CONCURRENCY", "BASE_PATH"})
OPTIONS = frozenset({"MODEL", "MAX_MODEL_LEN", "SEED", "TOKENIZER"})


def warnings(*variables: str, **idle: str) -> list[str]:
    names = SettingNames(OWN, OPTIONS, idle, frozenset({"VLLM_LOGGING_LEVEL"}))
    found = names.find_without_effect(variables)
    assert all(warning.startswith(f"{name} ") for name, warning in found)
    return [warning for _, warning in found]


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        # A removed option is also recognized with vLLM's prefix.
        ("VLLM_ENABLE_LORA_BIAS", "has no effect: vLLM has had no such option since 0.11"),
        ("WATCHDOG_CONFIG", "has no effect: needs vLLM 0.33.0 or later"),
        ("EMBEDDING_TOKENIZER_NAME", "has no effect without EMBEDDING_MODEL_NAME"),
    ],
)
def test_a_setting_without_effect_is_warned_about_with_the_reason(name: str, warning: str) -> None:
    assert warnings(name) == [f"{name} {warning}"]


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("VLLM_LOGING_LEVEL", "VLLM_LOGGING_LEVEL"),
        ("Max_Model_Len", "MAX_MODEL_LEN"),
        ("MAX-MODEL-LEN", "MAX_MODEL_LEN"),
        ("--seed", "SEED"),
    ],
)
def test_a_misspelled_setting_is_warned_about_with_the_right_name(written: str, right: str) -> None:
    assert warnings(written) == [f"{written} is not a setting: did you mean {right}?"]


def test_every_variable_without_effect_is_warned_about_in_alphabetical_order() -> None:
    found = warnings("SWAP_SPACE", "MAX_CONTEXT_LEN_TO_CAPTURE", "HF_TOKENN", "SEED", SEED="idle")
    names = ["HF_TOKENN", "MAX_CONTEXT_LEN_TO_CAPTURE", "SEED", "SWAP_SPACE"]
    assert [warning.split()[0] for warning in found] == names
    assert found[2] == "SEED has no effect: idle"


def test_a_setting_without_effect_is_not_also_reported_as_misspelled() -> None:
    names = SettingNames(
        frozenset(), frozenset({"SSL_KEYFILES"}), {"SSL_KEYFILE": "no socket"}, frozenset()
    )
    warning = ("SSL_KEYFILE", "SSL_KEYFILE has no effect: no socket")
    assert names.find_without_effect(["SSL_KEYFILE"]) == [warning]


def test_removed_and_misspelled_names_are_not_settings() -> None:
    accepted = {*CANONICAL_NAMES, *SPECULATIVE_KEYS}
    assert not REMOVED_SETTINGS.keys() & accepted
    assert not CORRECTIONS.keys() & (accepted | REMOVED_SETTINGS.keys())
    assert guess_setting("MODEL_ID", OWN) == "MODEL_NAME"


@pytest.mark.parametrize("model", ["EMBEDDING_MODEL_NAME", "EMBEDDING_MODEL"])
def test_settings_of_a_second_model_have_an_effect_if_it_is_set(model: str) -> None:
    assert warnings(model, "EMBEDDING_SEED", "EMBEDDING_TOKENIZER_NAME") == []
    assert warnings(model, "EMBEDDING_MAX_MODEL_LENGTH") == [
        "EMBEDDING_MAX_MODEL_LENGTH is not a setting: did you mean EMBEDDING_MAX_MODEL_LEN?"
    ]


# vLLM's releases; a contract test checks how their record is updated


@pytest.mark.parametrize(
    ("kind", "name", "removal"),
    [
        ("options", "WORKER_USE_RAY", Removal("0.6.6.post1", "0.7.0")),
        ("choices", "QUANTIZATION=squeezellm", Removal("0.6.0", "0.6.6.post1")),
        # A choice belongs to its option.
        ("choices", "LOAD_FORMAT=squeezellm", None),
        ("architectures", "Phi3SmallForCausalLM", Removal("0.9.2", "0.10.0")),
    ],
)
def test_removals_are_recorded_with_their_release(
    kind: history.EntryKind, name: str, removal: Removal | None
) -> None:
    assert history.find_removal(kind, name) == removal


def test_the_first_series_without_an_option_is_two_numbers() -> None:
    assert Removal("0.6.0", "0.6.6.post1").first_series_without == "0.6"
    assert Removal("0.6.6.post1", "0.7.0").first_series_without == "0.7"


def test_an_architecture_of_a_later_release_is_recorded() -> None:
    assert history.find_first_release("architectures", "Step5ForCausalLM") == "0.33.0"
    assert history.find_first_release("architectures", "LlamaForCausalLM") is None


@pytest.mark.parametrize(
    ("architectures", "problem", "remedy"),
    [
        (
            ["XverseForCausalLM"],
            "vLLM has had no XverseForCausalLM since 0.24",
            "use another model, such as Qwen/Qwen3-8B; vLLM 0.23.0, the last with it, is too old"
            " for this worker",
        ),
        (
            ["OwnForCausalLM", "ArcticForCausalLM"],
            "vLLM has had no ArcticForCausalLM since 0.29",
            "use another model; vLLM 0.28.0, the last with it, is too old for this worker",
        ),
    ],
)
def test_the_removal_of_an_architecture_is_explained_with_its_remedy(
    architectures: list[str], problem: str, remedy: str
) -> None:
    assert history.explain_removal(architectures) == (problem, remedy)


def test_an_image_with_an_older_vllm_is_a_remedy_if_the_worker_runs_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "OLDEST_VLLM", "0.23.0")
    explained = history.explain_removal(["XverseForCausalLM"])
    assert explained
    assert explained[1].endswith("such as Qwen/Qwen3-8B, or an image with vLLM 0.23.0")


@pytest.mark.parametrize("architectures", [[], ["LlamaForCausalLM"], ["OwnForCausalLM"]])
def test_architectures_that_vllm_has_not_removed_are_not_explained(
    architectures: list[str],
) -> None:
    assert history.explain_removal(architectures) is None


# The table of settings; its rows for vLLM's options are checked against vLLM in tests/contract

NAMES = {setting.name for setting in ROWS}


def test_every_setting_has_exactly_one_row_and_removed_names_have_no_row() -> None:
    assert {name.upper() for name in Settings.model_fields} - NAMES == set()
    assert OPTION_BY_SETTING.keys() - NAMES == set()
    assert EXAMPLES.keys() - NAMES == set()
    assert NAMES & REMOVED_SETTINGS.keys() == set()
    counts = Counter(setting.name for setting in ROWS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_rows_of_a_section_are_adjacent() -> None:
    sections = [setting.section for setting in ROWS]
    assert sections == sorted(sections, key=SECTIONS.index)
    assert set(sections) == set(SECTIONS)
    listed = {setting.name for setting in ROWS if setting.section == LIBRARIES}
    assert LIBRARY_VARIABLES - listed == set()


def test_the_form_contains_all_advanced_settings_but_no_variables_of_the_platform() -> None:
    assert [setting.name for setting in ROWS if setting.advanced and not setting.form] == []
    rows = [row(name) for name in PLATFORM_SETTINGS]
    assert [setting and setting.form for setting in rows] == [False] * len(PLATFORM_SETTINGS)


def test_an_example_is_found_by_every_name_of_a_setting() -> None:
    names = ("MODEL", "MODEL_NAME", "EMBEDDING_MODEL")
    assert [example_value(name) for name in names] == [
        EXAMPLES[name] for name in ("MODEL_NAME", "MODEL_NAME", "EMBEDDING_MODEL_NAME")
    ]
    assert example_value("LIMIT_MM_PER_PROMPT") == "image=1,video=0"
    assert example_value("ENFORCE_EAGER") is None
