"""Where the account's key and the platform's address come from, and the command line."""

from pathlib import Path

import pytest

from llm_worker_client import account
from llm_worker_client.__main__ import proxy, read_command_line
from llm_worker_client.account import NoKey

PROXY = ["proxy", "--endpoint", "abc"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the place of the platform's own file, in an environment without a key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RUNPOD_API_KEY", "PROXY_API_KEY", "RUNPOD_ENDPOINT_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".runpod").mkdir()
    return tmp_path / ".runpod" / "config.toml"


@pytest.mark.parametrize(
    "text", ['[default]\napi_key = "rpa_1"\n', "apikey = 'rpa_1'\napiurl = 'https://x'\n"]
)
def test_the_key_is_the_environments_or_that_of_the_platforms_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    config.write_text(text)
    assert account.api_key() == "rpa_1"
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_2")
    assert account.api_key() == "rpa_2"


@pytest.mark.parametrize("text", [None, "", "not toml", "[default]\n", "[default]\napi_key = 5\n"])
def test_a_file_without_a_key_is_none(config: Path, text: str | None) -> None:
    if text is not None:
        config.write_text(text)
    with pytest.raises(NoKey, match="RUNPOD_API_KEY"):
        account.api_key()


@pytest.mark.usefixtures("config")
def test_the_address_is_the_platforms_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert account.base_url() == "https://api.runpod.ai/v2"
    monkeypatch.setenv("RUNPOD_ENDPOINT_BASE_URL", "http://localhost:8000/v2")
    assert account.base_url() == "http://localhost:8000/v2"


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("host", "says"), [("127.0.0.1", "RUNPOD_API_KEY"), ("0.0.0.0", "PROXY_API_KEY")]
)
def test_a_proxy_that_lacks_a_key_says_which_and_does_not_start(
    capsys: pytest.CaptureFixture[str], host: str, says: str
) -> None:
    assert proxy(read_command_line([*PROXY, "--host", host])) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_wrong_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_command_line([*PROXY, "--port", port])
    assert "0 to 65535" in capsys.readouterr().err
