"""The shares of a GPU's memory for two engines of one worker."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.gpus import divide_memory
from worker.settings.mistakes import SettingsError

SHARE = "GPU_MEMORY_UTILIZATION"


def share(value: Any) -> dict[str, str]:
    return {} if value is None else {SHARE: str(value)}


# Shares of a GPU's memory:


@pytest.mark.parametrize(
    ("main", "embedders", "shares"),
    [
        (None, None, (0.85, 0.1)),
        (None, 0.3, (0.65, 0.3)),
        (None, 0.94, (0.01, 0.94)),
        (0.6, None, (0.6, 0.1)),
        (0.5, 0.2, (0.5, 0.2)),
        (0.9, 0.1, (0.9, 0.1)),
    ],
)
def test_two_engines_share_a_gpu(main: Any, embedders: Any, shares: tuple[float, float]) -> None:
    assert divide_memory(share(main), share(embedders)) == shares


@pytest.mark.parametrize(
    ("main", "embedders", "shares"),
    [
        (None, 0.95, ("0.95", "0")),
        (None, 1, ("1", "-0.05")),
        (0.8, 0.3, ("0.3", "0.8")),
        (0, 0.3, ("0.3", "0")),
    ],
)
def test_shares_that_no_gpu_can_give_are_refused(
    main: Any, embedders: Any, shares: tuple[str, str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        divide_memory(share(main), share(embedders))
    (mistake,) = caught.value.mistakes
    assert (mistake.name, mistake.value) == (f"EMBEDDING_{SHARE}", shares[0])
    assert mistake.advice == (
        f"with {SHARE}={shares[1]} for the model there is no room for it: at most 1 together"
    )


def test_the_share_that_was_set_is_the_one_that_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        divide_memory(share(0.95), {})
    (mistake,) = caught.value.mistakes
    assert str(mistake) == (
        f"{SHARE} = '0.95': with 0.1 for the embedder there is not enough: at most 1 together, "
        f"for example {SHARE}=0.9"
    )


@pytest.mark.parametrize(("main", "embedders"), [("half", None), (None, "half"), ("1", "half")])
def test_vllms_parser_refuses_what_is_not_a_number(main: Any, embedders: Any) -> None:
    assert divide_memory(share(main), share(embedders)) == (0.95, 0.1)


@given(st.integers(1, 94))
@settings(deadline=None, database=None)
def test_the_model_gets_what_the_embedder_leaves(percent: int) -> None:
    main, embedders = divide_memory({}, share(percent / 100))
    assert embedders == percent / 100
    # As written on a command line: no digits of floating-point rounding.
    assert float(f"{main:g}") == main == round((95 - percent) / 100, 2)
