"""An adapter's files: which names lead to them, and the checks without an engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora import (
    BROKEN,
    CONFIG,
    LORA_CONFIG,
    WEIGHTS,
    client,
    configured,
    renamed,
)

from worker.engine.adapters import Adapters
from worker.engine.adapters.files import (
    BrokenAdapter,
    adapter_names,
    adapter_version,
    base_shapes,
    check_adapter,
    check_lora_modules,
    check_shapes,
)

Q_PROJ = "model.layers.{}.self_attn.q_proj"
SHAPES = {f"{Q_PROJ.format(1)}.lora_A.weight": (4, 16), f"{Q_PROJ.format(1)}.lora_B.weight": (8, 4)}


def shapes_of(model: Path) -> dict[str, tuple[int, ...]]:
    return base_shapes(SimpleNamespace(model=str(model), revision=None), None)


# Names


@pytest.mark.parametrize("name", ["good", "Good-2.1_x", "7b", "a" * 128])
def test_an_adapter_is_found_by_its_name(adapter: Path, name: str) -> None:
    adapter.rename(adapter.with_name(name))
    assert None not in (adapter_version(adapter.parent, name) or [None])
    assert adapter_names(adapter.parent) == [name]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            ".good",
            "-good",
            "../adapters/good",
            "./good",
            "good/",
            "good/.",
            "/good",
        ),
        *("good\0", "good\n", "go od", "good\\", "góod", "\ud800", "*", "a" * 129, "{}/good"),
    ],
)
def test_a_name_with_more_than_letters_digits_and_dots_is_none(adapter: Path, name: str) -> None:
    assert adapter_version(adapter.parent, name.format(adapter.parent)) is None


@pytest.mark.parametrize("linked", [".", CONFIG, WEIGHTS])
def test_a_link_out_of_the_directory_is_not_followed(adapter: Path, linked: str) -> None:
    outside = adapter.parent.parent / "outside"
    (adapter / linked).rename(outside)
    (adapter.parent / "good" if linked == "." else adapter / linked).symlink_to(outside)
    assert adapter_version(adapter.parent, "good") is None
    assert adapter_names(adapter.parent) == []


def test_a_link_to_another_adapter_is_one(adapter: Path) -> None:
    (adapter.parent / "latest").symlink_to("good")
    assert adapter_version(adapter.parent, "latest") == adapter_version(adapter.parent, "good")


def test_links_in_a_circle_are_no_adapter(adapter: Path) -> None:
    (adapter.parent / "circle").symlink_to("circle")
    assert adapter_version(adapter.parent, "circle") is None
    assert adapter_names(adapter.parent) == ["good"]


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS])
def test_an_adapter_that_lacks_a_file_is_found_but_not_listed(adapter: Path, missing: str) -> None:
    (adapter / missing).unlink()
    assert None in (adapter_version(adapter.parent, "good") or ())
    assert adapter_names(adapter.parent) == []


def test_without_a_directory_there_are_no_adapters(tmp_path: Path) -> None:
    assert adapter_names(tmp_path / "adapters") == []
    assert adapter_version(tmp_path / "adapters", "good") is None


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_changed_file_is_another_version(adapter: Path, file: str) -> None:
    before = adapter_version(adapter.parent, "good")
    (adapter / file).write_bytes((adapter / file).read_bytes() + b" ")
    assert adapter_version(adapter.parent, "good") != before


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
