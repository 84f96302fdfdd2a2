"""Hyperparameters by the names of both APIs: what they mean, and what is refused by name."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.fine_tunes.hyperparameters import NOT_SERVED, hyperparameters
from worker.trainer.spec import Hyperparameters, Lora


def read(max_rank: int = 16, **given: Any) -> Hyperparameters:
    return hyperparameters(given, "hyperparameters", max_rank=max_rank)


def refused(max_rank: int = 16, **given: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(max_rank, **given)
    return caught.value


def test_what_is_not_given_has_its_default() -> None:
    assert read() == Hyperparameters()
    assert read(epochs=None, n_epochs="auto", batch_size="auto", peft_config=None) == read()


LLM_ENGINE = {"epochs": 1, "lr": 0.0002, "warmup_ratio": 0.1, "weight_decay": 0.0}


@pytest.mark.parametrize("as_they_come", [lambda value: value, str])
def test_llm_engines_are_read_as_numbers_and_as_texts(as_they_come: Any) -> None:
    given = {name: as_they_come(value) for name, value in LLM_ENGINE.items()}
    expected = Hyperparameters(epochs=1, learning_rate=2e-4, warmup_ratio=0.1, weight_decay=0)
    assert read(**given) == expected


@pytest.mark.parametrize("as_they_come", [lambda value: value, str])
def test_openais_are_read_as_numbers_and_as_texts(as_they_come: Any) -> None:
    given = {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 0.1}
    found = read(**{name: as_they_come(value) for name, value in given.items()})
    assert (found.epochs, found.batch_size) == (3, 4)
    assert found.learning_rate == pytest.approx(2e-4)


def test_an_adapter_has_what_its_config_says() -> None:
    config = {
        "r": "8",
        "lora_alpha": 24,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj", "q_proj"],
        "use_rslora": "True",
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "peft_type": "LORA",
    }
    expected = Lora(
        r=8,
        lora_alpha=24,
        lora_dropout=0.1,
        target_modules=("q_proj", "v_proj"),
        use_rslora=True,
    )
    assert read(peft_config=config).lora == expected


def test_a_config_that_peft_has_written_is_taken_where_it_says_nothing_special() -> None:
    config: dict[str, Any] = {
        **dict.fromkeys(NOT_SERVED, None),
        "rank_pattern": {},
        "modules_to_save": [],
        "use_dora": False,
        "inference_mode": False,
        "init_lora_weights": True,
    }
    assert read(peft_config=config) == read()


@pytest.mark.parametrize("value", ["all-linear", None])
def test_all_layers_are_the_default(value: str | None) -> None:
    assert read(peft_config={"target_modules": value}).lora.target_modules is None


def test_the_scale_is_twice_the_rank_unless_it_is_given() -> None:
    assert read(peft_config={"r": 4}).lora.lora_alpha == 8
    assert read(peft_config={"r": 4, "lora_alpha": 4}).lora.lora_alpha == 4


def test_the_rank_is_what_the_endpoint_serves_at_most() -> None:
    assert read(max_rank=8).lora == Lora(r=8, lora_alpha=16)
    assert read(max_rank=64, peft_config={"r": 64}).lora.r == 64
    error = refused(peft_config={"r": 17})
    assert error.param == "hyperparameters.peft_config.r"
    assert error.message.endswith("17 is more than this endpoint serves: 16 (MAX_LORA_RANK)")


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"epoch": 1}, "epochs"),
        ({"n_epoch": 1}, "n_epochs"),
        ({"learning_rate_multiplyer": 1}, "learning_rate_multiplier"),
        ({"peft_config": {"lora_alfa": 1}}, "peft_config.lora_alpha"),
        ({"peft_config": {"rank": 1}}, None),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(
    given: dict[str, Any], near: str | None
) -> None:
    error = refused(**given)
    assert f"unknown key {error.param!r}" in error.message
    if near:
        assert f"did you mean 'hyperparameters.{near}'?" in error.message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        *(({"epochs": value}, "epochs") for value in (0, 20, 1.5, "many", True, [1], "nan")),
        ({"n_epochs": 20}, "n_epochs"),
        *(({"lr": value}, "lr") for value in (0, -1, "inf", "fast")),
        *(
            ({"learning_rate_multiplier": value}, "learning_rate_multiplier")
            for value in (0, "fast", [1], "inf", False)
        ),
        ({"batch_size": 0}, "batch_size"),
        ({"warmup_ratio": 1.1}, "warmup_ratio"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"peft_config": "r=8"}, "peft_config"),
        *(({"peft_config": {"r": value}}, "peft_config.r") for value in (0, 1.5, True)),
        ({"peft_config": {"lora_dropout": 1}}, "peft_config.lora_dropout"),
        ({"peft_config": {"lora_alpha": 0}}, "peft_config.lora_alpha"),
        ({"peft_config": {"use_rslora": 1}}, "peft_config.use_rslora"),
        ({"peft_config": {"bias": "all"}}, "peft_config.bias"),
        ({"peft_config": {"peft_type": "IA3"}}, "peft_config.peft_type"),
        ({"peft_config": {"init_lora_weights": "pissa"}}, "peft_config.init_lora_weights"),
        ({"peft_config": {"use_dora": True}}, "peft_config.use_dora"),
        ({"peft_config": {"use_dora": "true"}}, "peft_config.use_dora"),
        ({"peft_config": {"modules_to_save": ["lm_head"]}}, "peft_config.modules_to_save"),
        ({"peft_config": {"layer_replication": [[0, 1]]}}, "peft_config.layer_replication"),
        *(
            ({"peft_config": {"target_modules": value}}, "peft_config.target_modules")
            for value in ([], "all linear", r".*\.q_proj", [1], {"q_proj": 1}, ["../x"])
        ),
    ],
)
def test_a_value_that_is_none_is_refused_by_the_name_that_the_caller_wrote(
    given: dict[str, Any], field: str
) -> None:
    error = refused(**given)
    assert error.param == f"hyperparameters.{field}"
    assert error.message.startswith(f"hyperparameters.{field}: ")


def test_two_names_for_one_thing_are_refused() -> None:
    error = refused(epochs=1, n_epochs=2)
    expected = "hyperparameters.n_epochs: hyperparameters.epochs says the same: give one of them"
    assert error.message == expected


def test_a_seed_that_is_none_is_refused_by_its_own_name() -> None:
    with pytest.raises(InvalidInput) as caught:
        hyperparameters({}, "hyperparameters", max_rank=16, seed=-1)
    assert caught.value.param == "seed"
