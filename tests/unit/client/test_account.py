"""The account's API key, the platform's address, and the proxy's command line."""

from pathlib import Path

import pytest

from llm_worker_client import account
from llm_worker_client.__main__ import read_command_line, run_proxy
from llm_worker_client.account import NoApiKey

PROXY = ["proxy", "--endpoint", "abc"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the path of the platform's own file; remove the key from the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RUNPOD_API_KEY", "PROXY_API_KEY", "RUNPOD_ENDPOINT_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".runpod").mkdir()
    return tmp_path / ".runpod" / "config.toml"


@pytest.mark.parametrize(
    "text", ['[default]\napi_key = "rpa_1"\n', "apikey = 'rpa_1'\napiurl = 'https://x'\n"]
)
def test_the_key_comes_from_the_environment_or_else_from_the_platforms_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    config.write_text(text)
    assert account.api_key() == "rpa_1"
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_2")
    assert account.api_key() == "rpa_2"


@pytest.mark.parametrize("text", [None, "", "not toml", "[default]\n", "[default]\napi_key = 5\n"])
def test_a_missing_key_is_an_error(config: Path, text: str | None) -> None:
    if text is not None:
        config.write_text(text)
    with pytest.raises(NoApiKey, match="RUNPOD_API_KEY"):
        account.api_key()


@pytest.mark.usefixtures("config")
def test_the_address_is_the_platforms_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert account.platform_base_url() == "https://api.runpod.ai/v2"
    monkeypatch.setenv("RUNPOD_ENDPOINT_BASE_URL", "http://localhost:8000/v2")
    assert account.platform_base_url() == "http://localhost:8000/v2"


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("host", "message"), [("127.0.0.1", "RUNPOD_API_KEY"), ("0.0.0.0", "PROXY_API_KEY")]
)
def test_a_proxy_without_its_key_names_it_and_does_not_start(
    capsys: pytest.CaptureFixture[str], host: str, message: str
) -> None:
    assert run_proxy(read_command_line([*PROXY, "--host", host])) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_wrong_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_command_line([*PROXY, "--port", port])
    assert "0 to 65535" in capsys.readouterr().err
