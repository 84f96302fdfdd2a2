"""Settings in an image: they apply to the model in it, and to no other."""

import json
from pathlib import Path

import pytest

from worker.settings.sources import gather, options_of

EXTRA = "VLLM_EXTRA_ARGS"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    described = {"settings": {"MODEL_NAME": "b", "QUANTIZATION": "awq"}, "models": []}
    (tmp_path / "image").write_text(json.dumps(described))
    return tmp_path / "image"


@pytest.mark.parametrize("name", ["MODEL_NAME", "MODEL"])
def test_settings_of_a_baked_model_do_not_apply_to_another(image: Path, name: str) -> None:
    assert gather({name: "c"}, image).options() == {"MODEL": "c"}


@pytest.mark.parametrize("extra", ["--model c", "--model=c", "--dtype half --model c"])
def test_settings_of_a_baked_model_do_not_apply_to_extra_arguments(image: Path, extra: str) -> None:
    given = gather({EXTRA: extra}, image)
    assert "QUANTIZATION" not in given.options()
    # The settings want a name, whatever the arguments say.
    assert given.values["MODEL_NAME"] == "b"
    assert "QUANTIZATION" not in gather({EXTRA: extra, "MODEL_NAME": "b"}, image).options()


NO_OTHER: list[dict[str, str]] = [
    *({}, {"MODEL_NAME": "b"}, {"MODEL": " b "}, {"MODEL_NAME": "None"}, {"MODEL_NAME": " "}),
    {"MODEL_NAME": "None", "MODEL": "b"},
    *({EXTRA: "--model b"}, {EXTRA: "--model-impl transformers"}),
]


@pytest.mark.parametrize("environ", NO_OTHER, ids=str)
def test_a_baked_model_is_used_if_no_other_is_named(image: Path, environ: dict[str, str]) -> None:
    options = gather(environ, image).options()
    assert (options["MODEL"], options["QUANTIZATION"]) == ("b", "awq")


def test_words_of_a_command_line_are_read_by_the_names_of_settings() -> None:
    words = ["--model", "a", "--max_model_len=5", "--enforce-eager", "--json.key", "1", "-sc", "{}"]
    assert options_of(words) == {
        "MODEL": "a",
        "MAX_MODEL_LEN": "5",
        "ENFORCE_EAGER": "--json.key",
        "JSON": "1",
        "SC": "{}",
    }
    assert options_of([]) == {}
