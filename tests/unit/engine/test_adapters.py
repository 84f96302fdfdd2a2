"""An adapter's files: which names lead to them, and the checks without an engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora import (
    BROKEN,
    LORA_CONFIG,
    MOST_RANK,
    client,
    configured,
    renamed,
)

from worker.engine.adapters import Adapters
from worker.engine.adapters.files import (
    BrokenAdapter,
    base_shapes,
    check_adapter,
    check_lora_modules,
    check_shapes,
)

Q_PROJ = "model.layers.{}.self_attn.q_proj"
SHAPES = {f"{Q_PROJ.format(1)}.lora_A.weight": (4, 16), f"{Q_PROJ.format(1)}.lora_B.weight": (8, 4)}


def shapes_of(model: Path) -> dict[str, tuple[int, ...]]:
    return base_shapes(SimpleNamespace(model=str(model), revision=None), None)


# Files


def test_a_good_adapter_passes(adapter: Path, model: Path) -> None:
    check_adapter(adapter, LORA_CONFIG, shapes_of(model))


@pytest.mark.parametrize("keys", [{"use_rslora": True}, {"rank_pattern": {}}, {"unknown": [1]}])
def test_settings_that_change_nothing_of_the_shapes_pass(
    adapter: Path, model: Path, keys: dict[str, Any]
) -> None:
    configured(**keys)(adapter)
    check_adapter(adapter, LORA_CONFIG, shapes_of(model))


@pytest.mark.parametrize("kind", sorted(BROKEN.keys() - {"no-config", "no-weights", "pickled"}))
def test_a_broken_adapter_is_reported_without_its_path(
    adapter: Path, model: Path, kind: str
) -> None:
    change, message = BROKEN[kind]
    change(adapter)
    with pytest.raises(BrokenAdapter) as caught:
        check_adapter(adapter, LORA_CONFIG, shapes_of(model))
    assert message in str(caught.value)
    assert str(adapter.parent) not in str(caught.value)


def test_modules_that_the_models_files_name_otherwise_pass(adapter: Path, model: Path) -> None:
    renamed("model.layers", "language_model.layers")(adapter)
    check_adapter(adapter, LORA_CONFIG, shapes_of(model))


# Shapes


@pytest.mark.parametrize(
    "base",
    [
        {},
        {f"{Q_PROJ.format(1)}.weight": (8, 16)},
        {f"{Q_PROJ.format(1)}.weight": (16, 8)},  # the other way round
        {f"{Q_PROJ.format(1)}.weight": ()},  # packed
        {f"{Q_PROJ.format(0)}.weight": (8, 16), f"{Q_PROJ.format(1)}.qweight": ()},
        {"layers.0.wq.weight": (3, 3)},
    ],
)
def test_what_is_not_known_of_a_model_is_not_held_against_an_adapter(
    base: dict[str, tuple[int, ...]],
) -> None:
    check_shapes(SHAPES, 4, base)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({f"{Q_PROJ.format(1)}.weight": (8, 17)}, "8 x 16, the model's has 8 x 17"),
        ({f"{Q_PROJ.format(0)}.weight": (8, 16)}, f"the model has no {Q_PROJ.format(1)}"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    base: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(BrokenAdapter, match=message):
        check_shapes(SHAPES, 4, base)


def test_modules_of_different_ranks_pass_if_both_parts_of_each_agree() -> None:
    check_shapes(SHAPES, None, {})
    with pytest.raises(BrokenAdapter, match="lora_A has 4 rows and lora_B 5"):
        check_shapes({**SHAPES, f"{Q_PROJ.format(1)}.lora_B.weight": (8, 5)}, None, {})


def test_a_model_that_is_neither_here_nor_on_the_hub_has_no_known_shapes() -> None:
    for name in ("owner/never-downloaded", "s3://bucket/model", "a b c"):
        assert shapes_of(Path(name)) == {}


# Adapters given at the start


def test_good_adapters_may_be_given_at_the_start(adapter: Path, model: Path) -> None:
    local = SimpleNamespace(name="good", path=str(adapter))
    check_lora_modules(
        [local, SimpleNamespace(name="hub", path="owner/adapter")], client(model).vllm_config
    )


@pytest.mark.parametrize("kind", ["broken-json", "a-small", "no-config"])
def test_a_broken_adapter_given_at_the_start_is_reported_by_name(
    adapter: Path, model: Path, kind: str
) -> None:
    change, message = BROKEN[kind]
    change(adapter)
    modules = [SimpleNamespace(name="mine", path=str(adapter))]
    with pytest.raises(BrokenAdapter, match="LORA_MODULES: mine: ") as caught:
        check_lora_modules(modules, client(model).vllm_config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rank", "remedy"),
    [(9, "set MAX_LORA_RANK=16"), (64, "set MAX_LORA_RANK=64"), (4096, "vLLM takes at most 512")],
)
def test_an_adapter_of_too_high_a_rank_tells_the_rank_to_allow(
    adapter: Path, model: Path, rank: int, remedy: str
) -> None:
    configured(r=rank)(adapter)
    message = f"LoRA rank {rank} is greater than max_lora_rank {MOST_RANK}: {remedy}"
    with pytest.raises(BrokenAdapter, match=message):
        check_adapter(adapter, LORA_CONFIG, shapes_of(model))


def test_adapters_given_at_the_start_need_lora_enabled(adapter: Path, model: Path) -> None:
    modules = [SimpleNamespace(name="mine", path=str(adapter))]
    with pytest.raises(BrokenAdapter, match="ENABLE_LORA=1"):
        check_lora_modules(modules, client(model, None).vllm_config)
    check_lora_modules([], client(model, None).vllm_config)


@pytest.mark.parametrize(("lora_config", "warnings"), [(None, 1), (LORA_CONFIG, 0)])
def test_adapters_that_are_not_served_are_logged_once(
    adapter: Path, model: Path, lora_config: Any, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    state = SimpleNamespace(openai_serving_models=None)
    Adapters(adapter.parent.parent, client(model, lora_config), state)
    message = [record.message for record in caplog.records]
    assert message == ["to serve the adapters good, set ENABLE_LORA=1"] * warnings
