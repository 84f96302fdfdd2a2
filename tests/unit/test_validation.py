"""Messages about unknown keys suggest a known key only if it is similar."""

import pytest

from worker.validation import MAX_MISSPELLED_LENGTH, find_similar_names, unknown_key_message

PARSERS = ["auto", "fp8", "hermes", "llama3_json", "mistral", "openai", "qwen3_xml"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("fp7", "fp8"),
        ("hermse", "hermes"),
        ("mistal", "mistral"),
        ("openia", "openai"),
        ("llama3json", "llama3_json"),
        ("qwen3-xml", "qwen3_xml"),
    ],
)
def test_a_misspelled_name_is_recognised(written: str, meant: str) -> None:
    assert find_similar_names(written, PARSERS) == [meant]


@pytest.mark.parametrize("written", ["nope", "none", "", "json", "a", "option", "lama"])
def test_a_name_that_resembles_none_has_no_suggestion(written: str) -> None:
    assert find_similar_names(written, PARSERS) == []


def test_names_of_any_length_are_accepted_but_long_ones_are_not_compared() -> None:
    name = "a" * MAX_MISSPELLED_LENGTH
    assert find_similar_names(name, [f"{name}s"]) == [f"{name}s"]
    assert find_similar_names(f"{name}a", [f"{name}s"]) == []


@pytest.mark.parametrize(
    ("key", "known", "suggestion"),
    [
        ("max_token", "max_tokens", ": did you mean 'max_tokens'?"),
        ("options.epoch", "options.epochs", ": did you mean 'options.epochs'?"),
        # The path alone makes no key similar.
        ("hyperparameters.foo", "hyperparameters.epochs", ""),
        ("options.epoch", "epochs", ""),
    ],
)
def test_an_unknown_key_is_compared_with_keys_of_the_same_object(
    key: str, known: str, suggestion: str
) -> None:
    assert unknown_key_message(key, [known]) == f"unknown key {key!r}{suggestion}"
