"""Models with scripts for Scale LLM Engine, each way that they reach a worker."""

from typing import Any

import pytest
from support.processes.llm_engine import Host

ADAPTER = "fairy.tales-2"
OTHER = "sea.tales"
BASES = {"demo", "tiny/demo"}
STORY = " that lived beside a wide river"


@pytest.fixture(scope="module")
def answers(host: Host) -> dict[str, Any]:
    """Put two adapters on the volume; return the answers that the script got."""
    host.adapter(OTHER)
    host.adapter(ADAPTER)
    return host.printed("models", ADAPTER)


def test_models_are_listed_under_all_their_names(answers: dict[str, Any]) -> None:
    listed = {model["name"]: model for model in answers["listed"]}
    assert listed.keys() >= {*BASES, "listed", ADAPTER, OTHER}
    for name in (*BASES, "listed", ADAPTER, OTHER):
        model = listed[name]
        assert model["model_name"] == (name if name in BASES else "demo")
        assert (model["source"], model["status"]) == ("hugging_face", "READY")
        assert model["inference_framework"] == "vllm"
        assert model["num_shards"] == 1
        assert model["spec"] is None


def test_a_model_is_described_as_in_the_list(answers: dict[str, Any]) -> None:
    assert answers["get"] == answers["listed"]


def test_each_model_answers_under_its_name(answers: dict[str, Any]) -> None:
    texts = answers["texts"]
    assert texts["demo"] == texts["tiny/demo"]
    assert STORY.startswith(texts["demo"])
    assert texts["demo"] not in {texts[ADAPTER], texts["listed"]}


def test_a_deleted_adapter_is_gone(answers: dict[str, Any], host: Host) -> None:
    found = answers["deleted"]
    assert found["deleted"] == {"deleted": True}
    for call in ("again", "get", "completion", "download"):
        assert found[call]["error"] == "NotFoundError", call
    assert ADAPTER not in found["listed"]
    assert {*BASES, "listed", OTHER} <= set(found["listed"])
    assert not (host.volume / "adapters" / ADAPTER).exists()
    assert (host.volume / "adapters" / OTHER).is_dir()


@pytest.mark.parametrize("name", ["base", "base by its other name", "of the settings"])
def test_what_is_not_on_the_volume_is_not_deleted(name: str, answers: dict[str, Any]) -> None:
    assert answers["deleted"][name]["error"] == "BadRequestError"
