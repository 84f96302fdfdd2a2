"""What the client takes for a wrong value of a setting, the worker refuses, too."""

from collections.abc import Iterator

import pytest
from listed import WORKERS, Catalogue

from llm_worker_client.deploy.settings import LISTING
from worker.engine.options.option import Option
from worker.settings import Settings
from worker.settings.mistakes import SettingsError
from worker.settings.names import ALIASES

TEXTS = (
    *("0", "1", "2", "-1", "-2", "+3", "007", "1_000", "4096", "99999999999", "0.5", "1.0", "7.5"),
    *("1e3", "inf", "nan", "16k", "16K", "1.5m", "2G", "k", "auto", "none", "None", "null", "all"),
    *("true", "Yes", "OFF", "t", "abc", "FLOAT16", "Half", "my.own.Class", "org/name", "./here"),
    *("https://hub/org/name", "org/name@main", "a b", "{}", '{"a": 1}', "[1]", "[", "a=b,c", "1,2"),
)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(WORKERS)


def texts(option: Option | None = None) -> Iterator[str]:
    yield from TEXTS
    if option:
        yield from {*option.choices, option.default, option.example or ""} - {""}


@pytest.mark.slow
def test_no_value_is_refused_that_vllm_takes(catalogue: Catalogue) -> None:
    names = {name: name for name in catalogue.options.names} | ALIASES
    surprises = [
        (name, value)
        for name, option in names.items()
        for value in texts(catalogue.options[option])
        if LISTING.wrong(name, value) and not catalogue.mistakes(option, value)
    ]
    # The worker checks a model's name before vLLM sees it.
    assert [one for one in surprises if one[0] not in {"MODEL", "MODEL_NAME"}] == []


def test_no_value_is_refused_that_the_worker_takes() -> None:
    surprises = []
    for name in map(str.upper, Settings.model_fields):
        for value in filter(lambda text: LISTING.wrong(name, text), TEXTS):
            try:
                Settings.from_env({"MODEL_NAME": "org/name", name: value})
            except SettingsError:
                continue
            surprises.append((name, value))
    assert surprises == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_MODEL_LEN", "abc"),
        ("GPU_MEMORY_UTILIZATION", "7"),
        ("EMBEDDING_GPU_MEMORY_UTILIZATION", "0"),
        ("TENSOR_PARALLEL_SIZE", "0"),
        ("ENFORCE_EAGER", "perhaps"),
        ("DTYPE", "bloat16"),
        ("QUANTIZATION", "bitsandbytes"),
        ("MODEL_NAME", "https://huggingface.co/Qwen/Qwen3-0.6B"),
        ("MAX_CONCURRENCY", "many"),
        ("DEFAULT_BATCH_SIZE", "0"),
        ("LOG_FORMAT", "xml"),
        ("LORA_MODULES", '[{"name": "sql"'),
    ],
)
def test_wrong_values_are_found_without_the_worker(name: str, value: str) -> None:
    assert LISTING.wrong(name, value)
