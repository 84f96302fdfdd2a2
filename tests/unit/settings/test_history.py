"""The record of vLLM's releases; a contract test checks how it is updated."""

from typing import get_args

import pytest

from worker.settings import history
from worker.settings.history import Removal


def test_an_option_that_vllm_removed_has_a_last_release_and_one_without_it() -> None:
    removal = history.removal("options", "WORKER_USE_RAY")
    assert removal == Removal("0.6.6.post1", "0.7.0")
    assert removal.since == "0.7"


def test_a_choice_belongs_to_its_option() -> None:
    assert history.removal("choices", "QUANTIZATION=squeezellm") == Removal("0.6.0", "0.6.6.post1")
    assert history.removal("choices", "LOAD_FORMAT=squeezellm") is None


def test_an_architecture_is_found_by_the_name_in_a_models_configuration() -> None:
    assert history.removal("architectures", "Phi3SmallForCausalLM") == Removal("0.9.2", "0.10.0")
    assert history.first_release("architectures", "Step5ForCausalLM") == "0.33.0"


@pytest.mark.parametrize("name", ["", "NO_SUCH_OPTION", "MAX_MODEL_LEN", "LlamaForCausalLM"])
def test_options_of_all_or_no_releases_are_not_recorded(name: str) -> None:
    for kind in get_args(history.Kind):
        assert history.removal(kind, name) is None
    assert history.first_release("options", name) is None
    assert history.first_release("architectures", name) is None
