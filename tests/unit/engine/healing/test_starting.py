"""What a start changes in this process."""

from collections.abc import Iterator

import pytest
import vllm.envs

from worker.engine.healing.starting import environ_may_change

NAME = "VLLM_CPU_KVCACHE_SPACE"


@pytest.fixture(autouse=True)
def _reading() -> Iterator[None]:
    yield
    vllm.envs.disable_envs_cache()


def test_vllm_reads_its_variables_while_a_core_starts_and_not_for_every_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with environ_may_change():
        monkeypatch.setenv(NAME, "3")
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    monkeypatch.setenv(NAME, "4")
    assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    with environ_may_change():
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 4
