"""What LLM Engine's client says of a fine-tune's metrics."""

import pytest

from worker.dialects.llm_engine.fine_tunes import PROJECT, Create
from worker.errors import InvalidInput


@pytest.mark.parametrize(
    ("report_to", "config", "wandb"),
    [
        ("wandb", {"project": "p", "name": "n"}, {"project": "p", "name": "n"}),
        ("wandb", None, {"project": PROJECT}),
        (None, {"project": "p"}, None),
        ("none", {"project": "p"}, None),
    ],
)
def test_llm_engines_metrics_go_where_it_says_when_it_reports_to_wandb(
    report_to: str | None, config: dict[str, str] | None, wandb: dict[str, str] | None
) -> None:
    hyperparameters = {"epochs": "2", "report_to": report_to}
    body = {"model": "demo", "training_file": "file-a", "hyperparameters": hyperparameters}
    asked = Create.of_body({**body, "wandb_config": config}).as_openais
    assert asked.wandb == wandb
    assert asked.given["epochs"] == "2"


@pytest.mark.parametrize("key", ["api_key", "base_url"])
def test_neither_a_callers_key_nor_a_callers_server_is_taken(key: str) -> None:
    body = {"model": "demo", "training_file": "a", "hyperparameters": {"report_to": "wandb"}}
    with pytest.raises(InvalidInput) as caught:
        _ = Create.of_body({**body, "wandb_config": {key: "secret-word"}}).as_openais
    assert caught.value.param == f"wandb_config.{key}"
    assert "secret-word" not in caught.value.message
