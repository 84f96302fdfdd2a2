"""Checks of an adapter's files without an engine, once for each version of the files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora import (
    BROKEN,
    LORA_CONFIG,
    MAX_RANK,
    Change,
    fake_client,
    rename_tensors,
    set_config,
)

from worker.engine.run.adapters import Adapters
from worker.engine.run.adapters import files as module
from worker.engine.run.adapters.files import (
    AdapterChecker,
    BrokenAdapter,
    check_adapter_shapes,
    check_lora_modules,
    read_base_tensor_shapes,
)
from worker.volume.adapters import adapter_version

FIRST, SECOND = (f"model.layers.{layer}.self_attn.q_proj" for layer in range(2))
SHAPES = {f"{SECOND}.lora_A.weight": (4, 16), f"{SECOND}.lora_B.weight": (8, 4)}


def shapes_of(model: Path) -> dict[str, tuple[int, ...]]:
    return read_base_tensor_shapes(SimpleNamespace(model=str(model), revision=None), None)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="unchanged"),
        pytest.param(set_config(use_rslora=True), id="rslora"),
        pytest.param(set_config(rank_pattern={}), id="no other ranks"),
        pytest.param(set_config(unknown=[1]), id="an unknown setting"),
        pytest.param(
            rename_tensors("model.layers", "language_model.layers"), id="other names of modules"
        ),
    ],
)
def test_a_valid_adapter_passes(adapter: Path, model: Path, change: Change) -> None:
    change(adapter)
    AdapterChecker(fake_client(model).vllm_config).check_files(adapter)


@pytest.mark.parametrize("kind", sorted(BROKEN.keys() - {"no-config", "no-weights", "pickled"}))
def test_a_broken_adapter_is_refused_without_its_path(
    adapter: Path, model: Path, kind: str
) -> None:
    change, message = BROKEN[kind]
    change(adapter)
    with pytest.raises(BrokenAdapter) as caught:
        AdapterChecker(fake_client(model).vllm_config).check_files(adapter)
    assert message in str(caught.value)
    assert str(adapter.parent) not in str(caught.value)


@pytest.mark.parametrize(
    ("rank", "remedy"),
    [(9, "set MAX_LORA_RANK=16"), (64, "set MAX_LORA_RANK=64"), (4096, "vLLM takes at most 512")],
)
def test_a_rank_above_the_limit_is_refused(
    adapter: Path, model: Path, rank: int, remedy: str
) -> None:
    set_config(r=rank)(adapter)
    message = f"LoRA rank {rank} is greater than max_lora_rank {MAX_RANK}: {remedy}"
    with pytest.raises(BrokenAdapter, match=message):
        AdapterChecker(fake_client(model).vllm_config).check_files(adapter)


@pytest.mark.parametrize(
    "base",
    [
        pytest.param({}, id="nothing is known"),
        pytest.param({f"{SECOND}.weight": (8, 16)}, id="the same"),
        pytest.param({f"{SECOND}.weight": (16, 8)}, id="the other way round"),
        pytest.param({f"{SECOND}.weight": ()}, id="packed"),
        pytest.param({f"{FIRST}.weight": (8, 16), f"{SECOND}.qweight": ()}, id="packed in part"),
        pytest.param({"layers.0.wq.weight": (3, 3)}, id="other names"),
    ],
)
def test_a_shape_that_the_model_may_have_passes(base: dict[str, tuple[int, ...]]) -> None:
    check_adapter_shapes(SHAPES, 4, base)


def test_modules_of_different_ranks_pass_if_both_matrices_of_each_agree() -> None:
    check_adapter_shapes(SHAPES, None, {})
    with pytest.raises(BrokenAdapter, match="lora_A has 4 rows and lora_B 5"):
        check_adapter_shapes({**SHAPES, f"{SECOND}.lora_B.weight": (8, 5)}, None, {})


@pytest.mark.parametrize("name", ["owner/never-downloaded", "s3://bucket/model", "a b c"])
def test_a_model_that_can_not_be_found_has_no_known_shapes(name: str) -> None:
    assert shapes_of(Path(name)) == {}


def modules(**paths: Path | str) -> list[SimpleNamespace]:
    return [SimpleNamespace(name=name, path=str(path)) for name, path in paths.items()]


def test_valid_adapters_and_adapters_on_the_hub_pass_at_startup(adapter: Path, model: Path) -> None:
    check_lora_modules(modules(good=adapter, hub="owner/adapter"), fake_client(model).vllm_config)


@pytest.mark.parametrize("kind", ["broken-json", "a-small", "no-config"])
def test_startup_refuses_a_broken_adapter_by_name(adapter: Path, model: Path, kind: str) -> None:
    change, message = BROKEN[kind]
    change(adapter)
    with pytest.raises(BrokenAdapter, match="LORA_MODULES: mine: ") as caught:
        check_lora_modules(modules(mine=adapter), fake_client(model).vllm_config)
    assert message in str(caught.value)


def test_adapters_at_startup_require_lora(adapter: Path, model: Path) -> None:
    with pytest.raises(BrokenAdapter, match="ENABLE_LORA=1"):
        check_lora_modules(modules(mine=adapter), fake_client(model, None).vllm_config)
    check_lora_modules([], fake_client(model, None).vllm_config)


@pytest.mark.parametrize(("lora_config", "warnings"), [(None, 1), (LORA_CONFIG, 0)])
def test_adapters_that_are_not_served_are_logged_once(
    adapter: Path, model: Path, lora_config: Any, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    state = SimpleNamespace(openai_serving_models=None)
    Adapters(adapter.parent.parent, fake_client(model, lora_config), state)
    message = [record.message for record in caplog.records]
    assert message == ["to serve the adapters good, set ENABLE_LORA=1"] * warnings


# Repeated checks


class CountingChecker(AdapterChecker):
    """A checker that finds an adapter broken if its configuration contains a reason."""

    def __init__(self) -> None:
        super().__init__(None)
        self.checked_names: list[str] = []

    def check_files(self, folder: Path, *, read_weights: bool = True) -> None:
        assert not read_weights
        self.checked_names.append(folder.name)
        if reason := (folder / "adapter_config.json").read_text():
            raise BrokenAdapter(reason)


def write_adapter(root: Path, name: str, reason: str = "") -> Path:
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(reason)
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_each_version_of_an_adapter_is_checked_once(tmp_path: Path) -> None:
    checker = CountingChecker()
    write_adapter(tmp_path, "good")
    high = write_adapter(tmp_path, "high", "its rank is 64")
    for _ in range(3):
        assert checker.find_problems_by_adapter(tmp_path, {}) == {
            "good": None,
            "high": "its rank is 64",
        }
    assert checker.checked_names == ["good", "high"]
    write_adapter(tmp_path, "high", "")
    assert checker.find_problems_by_adapter(tmp_path, {}) == {"good": None, "high": None}
    assert checker.checked_names == ["good", "high", "high"]
    (high / "adapter_model.safetensors").unlink()
    assert checker.find_problems_by_adapter(tmp_path, {}) == {"good": None}


def test_the_result_of_loading_an_adapter_replaces_its_check(tmp_path: Path) -> None:
    checker = CountingChecker()
    write_adapter(tmp_path, "good")
    write_adapter(tmp_path, "nan")
    version = adapter_version(tmp_path, "nan")
    assert version
    assert checker.find_problems_by_adapter(tmp_path, {"nan": (version, "not finite")}) == {
        "good": None,
        "nan": "not finite",
    }
    write_adapter(tmp_path, "nan", "its rank is 64")
    assert (
        checker.find_problems_by_adapter(tmp_path, {"nan": (version, "not finite")})["nan"]
        == "its rank is 64"
    )
    assert checker.checked_names == ["good", "nan"]


def test_each_listing_checks_a_limited_number_of_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHECKS_PER_LISTING", 2)
    checker = CountingChecker()
    for name in "abc":
        write_adapter(tmp_path, name, "broken")
    assert checker.find_problems_by_adapter(tmp_path, {}) == {
        "a": "broken",
        "b": "broken",
        "c": None,
    }
    assert checker.find_problems_by_adapter(tmp_path, {}) == dict.fromkeys("abc", "broken")
    assert checker.checked_names == ["a", "b", "c"]


def test_an_unreadable_adapter_is_not_reported_as_broken(tmp_path: Path) -> None:
    class Unreadable(AdapterChecker):
        def check_files(self, folder: Path, *, read_weights: bool = True) -> None:
            raise OSError("stale")

    write_adapter(tmp_path, "a")
    assert Unreadable(None).find_problems_by_adapter(tmp_path, {}) == {"a": None}
