"""Hyperparameters by the names of both APIs: their values, and errors that name the field."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.fine_tunes.hyperparameters import UNSUPPORTED, parse_hyperparameters
from worker.fine_tunes.spec import Hyperparameters, Lora


def parse(max_rank: int = 16, **values: Any) -> Hyperparameters:
    return parse_hyperparameters(values, "hyperparameters", max_rank=max_rank)


def parsing_error(**values: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as exc_info:
        parse(**values)
    return exc_info.value


def test_omitted_hyperparameters_have_defaults() -> None:
    assert parse() == Hyperparameters()
    assert parse(epochs=None, n_epochs="auto", batch_size="auto", peft_config=None) == parse()


LLM_ENGINE = {"epochs": 1, "lr": 0.0002, "warmup_ratio": 0.1, "weight_decay": 0.0}
OPENAI = {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 0.5}
# The equivalent values by the trainer's names.
EXPECTED = {"epochs": 1, "learning_rate": 2e-4, "warmup_ratio": 0.1, "weight_decay": 0}
EXPECTED_OF_OPENAI = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-3}


@pytest.mark.parametrize("convert", [lambda value: value, str], ids=["numbers", "strings"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [(LLM_ENGINE, EXPECTED), (OPENAI, EXPECTED_OF_OPENAI)],
    ids=["llm_engine", "openai"],
)
def test_names_of_both_apis_are_read_with_numbers_and_with_strings(
    values: dict[str, Any], expected: dict[str, Any], convert: Any
) -> None:
    converted = {name: convert(value) for name, value in values.items()}
    assert parse(**converted) == Hyperparameters(**expected)


NAMED = {"target_modules": ["q_proj", "v_proj", "q_proj"], "peft_type": "LORA"}
MODULES = {"target_modules": ("q_proj", "v_proj")}
EMPTY = {"rank_pattern": {}, "modules_to_save": [], "use_dora": False, "target_modules": None}


@pytest.mark.parametrize(
    ("config", "lora"),
    [
        (
            {**{"r": "8", "lora_alpha": 24, "lora_dropout": 0.1, "use_rslora": "True"}, **NAMED},
            {"r": 8, "lora_alpha": 24, "lora_dropout": 0.1, "use_rslora": True, **MODULES},
        ),
        # A config as PEFT writes it.
        ({**dict.fromkeys(UNSUPPORTED), **EMPTY, "inference_mode": False}, {}),
        ({"init_lora_weights": True, "fan_in_fan_out": False, "bias": "none"}, {}),
        ({"target_modules": "all-linear"}, {"target_modules": None}),
        ({"r": 4}, {"r": 4, "lora_alpha": 8}),
        ({"r": 4, "lora_alpha": 4}, {"r": 4, "lora_alpha": 4}),
    ],
    ids=["all", "written by PEFT", "supported values", "all layers", "default alpha", "own alpha"],
)
def test_the_adapter_follows_its_peft_config(config: dict[str, Any], lora: dict[str, Any]) -> None:
    assert parse(peft_config=config).lora == Lora(**lora)


def test_the_rank_never_exceeds_the_endpoints_maximum() -> None:
    assert parse(max_rank=8).lora == Lora(r=8, lora_alpha=16)
    assert parse(max_rank=64, peft_config={"r": 64}).lora.r == 64
    error = parsing_error(peft_config={"r": 17})
    assert error.param == "hyperparameters.peft_config.r"
    assert error.message.endswith("17 is more than this endpoint serves: 16 (MAX_LORA_RANK)")


@pytest.mark.parametrize(
    ("values", "message_part"),
    [
        ({"epoch": 1}, "did you mean 'hyperparameters.epochs'?"),
        ({"n_epoch": 1}, "did you mean 'hyperparameters.n_epochs'?"),
        ({"peft_config": {"lora_alfa": 1}}, "mean 'hyperparameters.peft_config.lora_alpha'?"),
        ({"peft_config": {"rank": 1}}, "'hyperparameters.peft_config.rank'"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(
    values: dict[str, Any], message_part: str
) -> None:
    error = parsing_error(**values)
    assert f"unknown key {error.param!r}" in error.message
    assert message_part in error.message
    # Two names of one hyperparameter are refused, too.
    expected = (
        "hyperparameters.n_epochs: hyperparameters.epochs has the same meaning: use one of them"
    )
    assert parsing_error(epochs=1, n_epochs=2).message == expected


WRONG: dict[str, list[Any]] = {
    "epochs": [0, 20, 1.5, "many", True, [1], "nan"],
    "n_epochs": [20],
    "lr": [0, -1, "inf", "fast"],
    "learning_rate_multiplier": [0, "fast", [1], "inf", False],
    "batch_size": [0],
    "warmup_ratio": [1.1],
    "weight_decay": [-0.1],
    "peft_config": ["r=8"],
}
WRONG_IN_CONFIG: dict[str, list[Any]] = {
    "r": [0, 1.5, True],
    "lora_dropout": [1],
    "lora_alpha": [0],
    "use_rslora": [1],
    "bias": ["all"],
    "peft_type": ["IA3"],
    "init_lora_weights": ["pissa"],
    "use_dora": [True, "true"],
    "modules_to_save": [["lm_head"]],
    "target_modules": [
        [],
        "all linear",
        r".*\.q_proj",
        [1],
        {"q_proj": 1},
        ["../x"],
        ["a" * 129],
        ["a"] * 65,
    ],
}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        *((name, {name: value}) for name, values in WRONG.items() for value in values),
        *(
            (f"peft_config.{name}", {"peft_config": {name: value}})
            for name, values in WRONG_IN_CONFIG.items()
            for value in values
        ),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_with_the_callers_name_of_the_field(
    field: str, values: dict[str, Any]
) -> None:
    error = parsing_error(**values)
    assert error.param == f"hyperparameters.{field}"
    assert error.message.startswith(f"hyperparameters.{field}: ")
