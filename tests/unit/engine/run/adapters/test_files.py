"""An adapter's files: checked without an engine, and looked at once for each version of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora import (
    BROKEN,
    LORA_CONFIG,
    MOST_RANK,
    Change,
    client,
    configured,
    renamed,
)

from worker.engine.run.adapters import Adapters
from worker.engine.run.adapters import files as module
from worker.engine.run.adapters.files import (
    AdapterChecks,
    BrokenAdapter,
    base_shapes,
    check_lora_modules,
    check_shapes,
)
from worker.volume.adapters import adapter_version

FIRST, SECOND = (f"model.layers.{layer}.self_attn.q_proj" for layer in range(2))
SHAPES = {f"{SECOND}.lora_A.weight": (4, 16), f"{SECOND}.lora_B.weight": (8, 4)}


def shapes_of(model: Path) -> dict[str, tuple[int, ...]]:
    return base_shapes(SimpleNamespace(model=str(model), revision=None), None)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="none"),
        pytest.param(configured(use_rslora=True), id="rslora"),
        pytest.param(configured(rank_pattern={}), id="no other ranks"),
        pytest.param(configured(unknown=[1]), id="an unknown setting"),
        pytest.param(renamed("model.layers", "language_model.layers"), id="other names of modules"),
    ],
)
def test_an_adapter_passes(adapter: Path, model: Path, change: Change) -> None:
    change(adapter)
    AdapterChecks(client(model).vllm_config).check(adapter)


@pytest.mark.parametrize("kind", sorted(BROKEN.keys() - {"no-config", "no-weights", "pickled"}))
def test_a_broken_adapter_is_refused_but_not_by_path(adapter: Path, model: Path, kind: str) -> None:
    change, message = BROKEN[kind]
    change(adapter)
    with pytest.raises(BrokenAdapter) as caught:
        AdapterChecks(client(model).vllm_config).check(adapter)
    assert message in str(caught.value)
    assert str(adapter.parent) not in str(caught.value)


@pytest.mark.parametrize(
    ("rank", "remedy"),
    [(9, "set MAX_LORA_RANK=16"), (64, "set MAX_LORA_RANK=64"), (4096, "vLLM takes at most 512")],
)
def test_too_high_a_rank_is_refused(adapter: Path, model: Path, rank: int, remedy: str) -> None:
    configured(r=rank)(adapter)
    message = f"LoRA rank {rank} is greater than max_lora_rank {MOST_RANK}: {remedy}"
    with pytest.raises(BrokenAdapter, match=message):
        AdapterChecks(client(model).vllm_config).check(adapter)


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
def test_a_shape_passes_that_the_model_may_have(base: dict[str, tuple[int, ...]]) -> None:
    check_shapes(SHAPES, 4, base)


def test_modules_of_different_ranks_pass_if_both_parts_of_each_agree() -> None:
    check_shapes(SHAPES, None, {})
    with pytest.raises(BrokenAdapter, match="lora_A has 4 rows and lora_B 5"):
        check_shapes({**SHAPES, f"{SECOND}.lora_B.weight": (8, 5)}, None, {})


@pytest.mark.parametrize("name", ["owner/never-downloaded", "s3://bucket/model", "a b c"])
def test_a_model_that_is_neither_here_nor_on_the_hub_has_no_known_shapes(name: str) -> None:
    assert shapes_of(Path(name)) == {}


def modules(**paths: Path | str) -> list[SimpleNamespace]:
    return [SimpleNamespace(name=name, path=str(path)) for name, path in paths.items()]


def test_good_adapters_and_those_of_the_hub_pass_at_the_start(adapter: Path, model: Path) -> None:
    check_lora_modules(modules(good=adapter, hub="owner/adapter"), client(model).vllm_config)


@pytest.mark.parametrize("kind", ["broken-json", "a-small", "no-config"])
def test_a_start_refuses_a_broken_adapter_by_name(adapter: Path, model: Path, kind: str) -> None:
    change, message = BROKEN[kind]
    change(adapter)
    with pytest.raises(BrokenAdapter, match="LORA_MODULES: mine: ") as caught:
        check_lora_modules(modules(mine=adapter), client(model).vllm_config)
    assert message in str(caught.value)


def test_adapters_at_the_start_need_lora_enabled(adapter: Path, model: Path) -> None:
    with pytest.raises(BrokenAdapter, match="ENABLE_LORA=1"):
        check_lora_modules(modules(mine=adapter), client(model, None).vllm_config)
    check_lora_modules([], client(model, None).vllm_config)


@pytest.mark.parametrize(("lora_config", "warnings"), [(None, 1), (LORA_CONFIG, 0)])
def test_adapters_that_are_not_served_are_logged_once(
    adapter: Path, model: Path, lora_config: Any, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    state = SimpleNamespace(openai_serving_models=None)
    Adapters(adapter.parent.parent, client(model, lora_config), state)
    message = [record.message for record in caplog.records]
    assert message == ["to serve the adapters good, set ENABLE_LORA=1"] * warnings


# Looks


class Checked(AdapterChecks):
    """Checks of adapters that are broken in the way that their configurations say."""

    def __init__(self) -> None:
        super().__init__(None)
        self.checked: list[str] = []

    def check(self, folder: Path, *, values: bool = True) -> None:
        assert not values
        self.checked.append(folder.name)
        if wrong := (folder / "adapter_config.json").read_text():
            raise BrokenAdapter(wrong)


def put(root: Path, name: str, wrong: str = "") -> Path:
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(wrong)
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_a_reason_is_found_once_for_each_version_of_what_is_there(tmp_path: Path) -> None:
    looks = Checked()
    put(tmp_path, "good")
    high = put(tmp_path, "high", "its rank is 64")
    for _ in range(3):
        assert looks.reasons(tmp_path, {}) == {"good": None, "high": "its rank is 64"}
    assert looks.checked == ["good", "high"]
    put(tmp_path, "high", "")
    assert looks.reasons(tmp_path, {}) == {"good": None, "high": None}
    assert looks.checked == ["good", "high", "high"]
    (high / "adapter_model.safetensors").unlink()
    assert looks.reasons(tmp_path, {}) == {"good": None}


def test_what_loading_finds_out_counts_and_saves_a_look(tmp_path: Path) -> None:
    looks = Checked()
    put(tmp_path, "good")
    put(tmp_path, "nan")
    version = adapter_version(tmp_path, "nan")
    assert version
    assert looks.reasons(tmp_path, {"nan": (version, "not finite")}) == {
        "good": None,
        "nan": "not finite",
    }
    put(tmp_path, "nan", "its rank is 64")
    assert looks.reasons(tmp_path, {"nan": (version, "not finite")})["nan"] == "its rank is 64"
    assert looks.checked == ["good", "nan"]


def test_each_listing_looks_at_a_few_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LOOKS", 2)
    looks = Checked()
    for name in "abc":
        put(tmp_path, name, "broken")
    assert looks.reasons(tmp_path, {}) == {"a": "broken", "b": "broken", "c": None}
    assert looks.reasons(tmp_path, {}) == dict.fromkeys("abc", "broken")
    assert looks.checked == ["a", "b", "c"]


def test_what_can_not_be_read_counts_as_sound(tmp_path: Path) -> None:
    class Unreadable(AdapterChecks):
        def check(self, folder: Path, *, values: bool = True) -> None:
            raise OSError("stale")

    put(tmp_path, "a")
    assert Unreadable(None).reasons(tmp_path, {}) == {"a": None}
