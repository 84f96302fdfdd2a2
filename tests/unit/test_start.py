"""How the settings of two engines in one worker are told apart, and what each has of a GPU."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.errors import SettingsError
from worker.settings import engine_environ, unheeded
from worker.start import _shares

SHARE = "GPU_MEMORY_UTILIZATION"


def share(value: Any) -> dict[str, str]:
    return {} if value is None else {SHARE: str(value)}


# Shares of a GPU's memory:


@pytest.mark.parametrize(
    ("main", "embedders", "shares"),
    [
        (None, None, (0.85, 0.1)),
        (None, 0.3, (0.65, 0.3)),
        (None, 0.94, (0.01, 0.94)),
        (0.6, None, (0.6, 0.1)),
        (0.5, 0.2, (0.5, 0.2)),
        (0.9, 0.1, (0.9, 0.1)),
    ],
)
def test_two_engines_share_a_gpu(main: Any, embedders: Any, shares: tuple[float, float]) -> None:
    assert _shares(share(main), share(embedders)) == shares


@pytest.mark.parametrize(
    ("main", "embedders", "told"),
    [
        (None, 0.95, ("0.95", "0")),
        (None, 1, ("1", "-0.05")),
        (0.95, None, ("0.1", "0.95")),
        (0.8, 0.3, ("0.3", "0.8")),
        (0, 0.3, ("0.3", "0")),
    ],
)
def test_shares_that_no_gpu_can_give_are_refused(
    main: Any, embedders: Any, told: tuple[str, str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        _shares(share(main), share(embedders))
    (mistake,) = caught.value.mistakes
    assert (mistake.name, mistake.value) == (f"EMBEDDING_{SHARE}", told[0])
    assert mistake.advice == (
        f"with {SHARE}={told[1]} for the model there is no room for it: at most 1 together"
    )


@pytest.mark.parametrize(("main", "embedders"), [("half", None), (None, "half"), ("1", "half")])
def test_what_is_no_number_is_vllms_parser_to_refuse(main: Any, embedders: Any) -> None:
    assert _shares(share(main), share(embedders)) == (0.95, 0.1)


@given(st.integers(1, 94))
@settings(deadline=None, database=None)
def test_what_the_embedder_takes_the_model_does_not_have(percent: int) -> None:
    main, embedders = _shares({}, share(percent / 100))
    assert embedders == percent / 100
    # As written on a command line: no digits of a computer's making.
    assert float(f"{main:g}") == main == round((95 - percent) / 100, 2)


# Settings of the second engine:


def test_a_prefix_selects_the_embedders_options_and_takes_itself_away() -> None:
    environ = {
        "MODEL_NAME": "org/model",
        "MAX_MODEL_LEN": "4096",
        "DTYPE": "half",
        "EMBEDDING_MODEL_NAME": " org/minilm ",
        "EMBEDDING_MAX_MODEL_LEN": "512",
        "EMBEDDING_SEED": " ",
        "EMBEDDING_MODEL_REVISION": "main",
    }
    assert engine_environ(environ, "EMBEDDING_") == {
        "MODEL": "org/minilm",
        "MAX_MODEL_LEN": "512",
        "REVISION": "main",
    }


def test_the_workers_own_settings_are_no_options_of_the_second_engine() -> None:
    environ = {"EMBEDDING_HF_TOKEN": "x", "EMBEDDING_SYSTEM_PROMPT": "x", "EMBEDDING_DTYPE": "half"}
    assert engine_environ(environ, "EMBEDDING_") == {"DTYPE": "half"}


def test_a_name_of_ours_wins_for_the_second_engine_too() -> None:
    environ = {"EMBEDDING_MODEL": "theirs", "EMBEDDING_MODEL_NAME": "ours"}
    assert engine_environ(environ, "EMBEDDING_") == {"MODEL": "ours"}


def test_the_name_of_the_second_model_is_no_option_of_the_first() -> None:
    assert "EMBEDDING_MODEL_NAME" not in engine_environ({"EMBEDDING_MODEL_NAME": "org/minilm"})


KNOWN = ["MODEL", "MAX_MODEL_LEN", "SEED"]


@pytest.mark.parametrize("name", [{}, {"EMBEDDING_MODEL_NAME": " "}])
def test_without_a_second_model_its_settings_are_told_to_have_no_effect(
    name: dict[str, str],
) -> None:
    environ = {"EMBEDDING_SEED": "1", "EMBEDDING_MAX_MODEL_LEN": "5", "EMBEDDING_MODEL": "x"}
    assert unheeded(KNOWN, {**environ, **name}) == [
        f"{idle} has no effect without EMBEDDING_MODEL_NAME" for idle in sorted(environ)
    ]


def test_with_a_second_model_its_settings_have_their_effect() -> None:
    environ = {"EMBEDDING_MODEL_NAME": "x", "EMBEDDING_SEED": "1", "EMBEDDING_TOKENIZER_NAME": "y"}
    assert unheeded(KNOWN, environ) == []


def test_a_misspelt_setting_of_the_second_engine_is_told() -> None:
    environ = {"EMBEDDING_MODEL_NAME": "x", "EMBEDDING_MAX_MODEL_LENGTH": "1"}
    assert unheeded(KNOWN, environ) == [
        "EMBEDDING_MAX_MODEL_LENGTH is not a setting: did you mean EMBEDDING_MAX_MODEL_LEN?"
    ]
