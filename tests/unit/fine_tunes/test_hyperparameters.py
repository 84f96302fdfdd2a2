"""Hyperparameters by the names of both APIs: what they mean, and what is refused by name."""

from typing import Any

import pytest

from trainer.spec import Hyperparameters, Lora
from worker.errors import InvalidInput
from worker.fine_tunes.hyperparameters import NOT_SERVED, hyperparameters


def read(max_rank: int = 16, **values: Any) -> Hyperparameters:
    return hyperparameters(values, "hyperparameters", max_rank=max_rank)


def refused(**values: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(**values)
    return caught.value


def test_what_is_left_out_has_its_default() -> None:
    assert read() == Hyperparameters()
    assert read(epochs=None, n_epochs="auto", batch_size="auto", peft_config=None) == read()


LLM_ENGINE = {"epochs": 1, "lr": 0.0002, "warmup_ratio": 0.1, "weight_decay": 0.0}
OPENAI = {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 0.5}
# What both mean, by our names.
OURS = {"epochs": 1, "learning_rate": 2e-4, "warmup_ratio": 0.1, "weight_decay": 0}
OURS_OF_OPENAI = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-3}


@pytest.mark.parametrize("as_written", [lambda value: value, str], ids=["numbers", "texts"])
@pytest.mark.parametrize(
    ("values", "ours"), [(LLM_ENGINE, OURS), (OPENAI, OURS_OF_OPENAI)], ids=["llm_engine", "openai"]
)
def test_both_apis_names_are_read_as_numbers_and_as_texts(
    values: dict[str, Any], ours: dict[str, Any], as_written: Any
) -> None:
    written = {name: as_written(value) for name, value in values.items()}
    assert read(**written) == Hyperparameters(**ours)


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
        # As PEFT writes one.
        ({**dict.fromkeys(NOT_SERVED), **EMPTY, "inference_mode": False}, {}),
        ({"init_lora_weights": True, "fan_in_fan_out": False, "bias": "none"}, {}),
        ({"target_modules": "all-linear"}, {"target_modules": None}),
        ({"r": 4}, {"r": 4, "lora_alpha": 8}),
        ({"r": 4, "lora_alpha": 4}, {"r": 4, "lora_alpha": 4}),
    ],
    ids=["all", "of PEFT", "the only values", "all layers", "scale of twice the rank", "own scale"],
)
def test_an_adapter_has_what_its_config_says(config: dict[str, Any], lora: dict[str, Any]) -> None:
    assert read(peft_config=config).lora == Lora(**lora)


def test_the_rank_is_what_the_endpoint_serves_at_most() -> None:
    assert read(max_rank=8).lora == Lora(r=8, lora_alpha=16)
    assert read(max_rank=64, peft_config={"r": 64}).lora.r == 64
    error = refused(peft_config={"r": 17})
    assert error.param == "hyperparameters.peft_config.r"
    assert error.message.endswith("17 is more than this endpoint serves: 16 (MAX_LORA_RANK)")


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ({"epoch": 1}, "did you mean 'hyperparameters.epochs'?"),
        ({"n_epoch": 1}, "did you mean 'hyperparameters.n_epochs'?"),
        ({"peft_config": {"lora_alfa": 1}}, "mean 'hyperparameters.peft_config.lora_alpha'?"),
        ({"peft_config": {"rank": 1}}, "'hyperparameters.peft_config.rank'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(values: dict[str, Any], end: str) -> None:
    error = refused(**values)
    assert f"unknown key {error.param!r}" in error.message
    assert end in error.message
    # So are two names for one thing.
    expected = "hyperparameters.n_epochs: hyperparameters.epochs says the same: give one of them"
    assert refused(epochs=1, n_epochs=2).message == expected


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
    "target_modules": [[], "all linear", r".*\.q_proj", [1], {"q_proj": 1}, ["../x"]],
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
def test_a_wrong_value_is_refused_by_its_written_name(field: str, values: dict[str, Any]) -> None:
    error = refused(**values)
    assert error.param == f"hyperparameters.{field}"
    assert error.message.startswith(f"hyperparameters.{field}: ")
