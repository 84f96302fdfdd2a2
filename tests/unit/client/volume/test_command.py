"""The `files` command."""

import asyncio
from pathlib import Path

import pytest
from support.scripted_endpoint import ACCOUNT, OutputsFunction, Script
from unit.client.conftest import Mount

from emulator import Emulator
from llm_worker_client import files
from llm_worker_client.__main__ import read_command_line

pytestmark = pytest.mark.usefixtures("_set_volume_environ")


@pytest.fixture
def script() -> Script:
    return Script([{"id": "file-1"}])


@pytest.fixture
def answer(script: Script) -> OutputsFunction:
    return script.answer


def run(*arguments: str) -> int:
    return files.run(read_command_line(["files", *arguments]))


def test_a_file_is_uploaded_listed_downloaded_and_deleted(
    mount: Mount, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A key that others have chosen must not control the terminal.
    name, printed_name = "\x1b]0;pwned\x07\x9b31m\x0b", "\\u001b]0;pwned\\u0007\\u009b31m\\u000b"
    assert run("upload", str(file), "--key", f"in/{name}") == 0
    assert capsys.readouterr().out == f"in/{printed_name}\n"
    assert mount.read(f"in/{name}") == file.read_bytes()
    assert run("list", "in/") == 0
    listed = capsys.readouterr().out
    assert (f"{file.stat().st_size:,} " in listed, f" in/{printed_name}\n" in listed) == (
        True,
        True,
    )
    assert run("download", f"in/{name}", str(tmp_path), "--quiet") == 0
    assert (tmp_path / name).read_bytes() == file.read_bytes()
    assert run("delete", f"in/{name}") == 0
    assert run("delete", f"in/{name}") == 1
    printed = capsys.readouterr()
    assert f"There is no in/{printed_name} on the volume." in printed.err
    assert mount.server.secret_key not in printed.out + printed.err
    assert not set("\x1b\x07\x9b") & set(printed.out + printed.err)


async def test_an_uploaded_file_becomes_a_file_of_the_endpoint(
    emulator: Emulator,
    script: Script,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", ACCOUNT)
    flags = ("--endpoint", "local", "--base-url", emulator.api_url, "--purpose", "fine-tune")
    assert await asyncio.to_thread(run, "upload", str(file), *flags) == 0
    body = {"path": "inbox/rows.jsonl", "filename": "rows.jsonl", "purpose": "fine-tune"}
    assert [job_input["openai_input"] for job_input in script.inputs] == [body]
    assert capsys.readouterr().out == "file-1\n"


def test_a_missing_variable_is_named_with_status_2(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert run("upload", str(file)) == 2
    assert "Set AWS_SECRET_ACCESS_KEY:" in capsys.readouterr().err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert run("upload", str(file)) == 1
    assert "The secret is not that of the access key" in capsys.readouterr().err
