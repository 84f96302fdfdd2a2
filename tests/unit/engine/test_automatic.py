"""Defaults that the worker chooses: the shares of two engines of a GPU's memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.options.automatic import MEMORY_OPTION, divide_gpu_memory
from worker.settings.mistakes import SettingsError
from worker.settings.names import EMBEDDER_PREFIX


def gpu_shares(main: object, embedder: object) -> tuple[float, float]:
    shares = divide_gpu_memory(
        *({} if value is None else {MEMORY_OPTION: str(value)} for value in (main, embedder))
    )
    return shares[""], shares[EMBEDDER_PREFIX]


@pytest.mark.parametrize(
    ("main", "embedder", "shares"),
    [
        (None, None, (0.85, 0.1)),
        (None, 0.3, (0.65, 0.3)),
        (None, 0.94, (0.01, 0.94)),
        (0.6, None, (0.6, 0.1)),
        (0.5, 0.2, (0.5, 0.2)),
        (0.9, 0.1, (0.9, 0.1)),
        # vLLM's parser refuses values that aren't numbers.
        ("half", None, (0.95, 0.1)),
        (None, "half", (0.95, 0.1)),
        ("1", "half", (0.95, 0.1)),
    ],
)
def test_two_engines_share_a_gpu(main: Any, embedder: Any, shares: tuple[float, float]) -> None:
    assert gpu_shares(main, embedder) == shares


@pytest.mark.parametrize(
    ("main", "embedder", "name"),
    [
        (None, 0.95, f"EMBEDDING_{MEMORY_OPTION}"),
        (0.8, 0.3, f"EMBEDDING_{MEMORY_OPTION}"),
        (0, 0.3, f"EMBEDDING_{MEMORY_OPTION}"),
        (0.95, None, MEMORY_OPTION),
    ],
)
def test_shares_that_exceed_a_gpu_are_refused(main: Any, embedder: Any, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        gpu_shares(main, embedder)
    assert [one.name for one in caught.value.mistakes] == [name]


@given(st.integers(1, 94))
def test_the_model_gets_the_share_that_the_embedder_leaves(percent: int) -> None:
    main, embedder = gpu_shares(None, percent / 100)
    assert embedder == percent / 100
    # The share is written on a command line, without digits from floating-point rounding.
    assert float(f"{main:g}") == main == round((95 - percent) / 100, 2)
