"""The reporting of metrics in LLM Engine's requests for fine-tunes."""

import pytest

from worker.dialects.llm_engine.fine_tunes import DEFAULT_PROJECT, LLMEngineFineTuneRequest
from worker.errors import InvalidInput


@pytest.mark.parametrize(
    ("report_to", "config", "wandb"),
    [
        ("wandb", {"project": "p", "name": "n"}, {"project": "p", "name": "n"}),
        ("wandb", None, {"project": DEFAULT_PROJECT}),
        (None, {"project": "p"}, None),
        ("none", {"project": "p"}, None),
    ],
)
def test_metrics_are_reported_to_wandb_if_report_to_names_it(
    report_to: str | None, config: dict[str, str] | None, wandb: dict[str, str] | None
) -> None:
    hyperparameters = {"epochs": "2", "report_to": report_to}
    body = {"model": "demo", "training_file": "file-a", "hyperparameters": hyperparameters}
    request = LLMEngineFineTuneRequest.from_body({**body, "wandb_config": config}).as_openai_request
    assert request.wandb_options == wandb
    assert request.raw_hyperparameters["epochs"] == "2"


@pytest.mark.parametrize("key", ["api_key", "base_url"])
def test_a_callers_wandb_key_or_server_is_refused(key: str) -> None:
    body = {"model": "demo", "training_file": "a", "hyperparameters": {"report_to": "wandb"}}
    with pytest.raises(InvalidInput) as caught:
        _ = LLMEngineFineTuneRequest.from_body(
            {**body, "wandb_config": {key: "secret-word"}}
        ).as_openai_request
    assert caught.value.param == f"wandb_config.{key}"
    assert "secret-word" not in caught.value.message
