"""The command `files`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.deployed import ACCOUNT, deployed
from unit.client.volume.conftest import Mount

from llm_worker_client import files
from llm_worker_client.command_line import read_command_line


@pytest.fixture(autouse=True)
def set_up(mount: Mount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in mount.server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    return files.run(read_command_line(["files", *arguments]))


def test_a_file_goes_up_is_listed_read_and_deleted(
    mount: Mount, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("upload", str(file)) == 0
    assert capsys.readouterr().out == "inbox/rows.jsonl\n"
    assert (mount.directory / "inbox/rows.jsonl").read_bytes() == file.read_bytes()
    assert run("list", "inbox/rows") == 0
    assert f"{file.stat().st_size:,}" in capsys.readouterr().out
    Path("back").mkdir()
    assert run("download", "inbox/rows.jsonl", "back", "--quiet") == 0
    assert Path("back/rows.jsonl").read_bytes() == file.read_bytes()
    assert run("delete", "inbox/rows.jsonl") == 0
    assert run("delete", "inbox/rows.jsonl") == 1
    told = capsys.readouterr()
    assert "There is no inbox/rows.jsonl on the volume." in told.err
    assert mount.server.secret not in told.out + told.err


async def test_a_file_is_made_one_of_the_endpoint(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", ACCOUNT)
    given = list[Any]()

    def answers(job: Any) -> list[Any]:
        given.append(job["openai_input"])
        return [{"id": "file-1"}]

    async with deployed(answers) as emulator:
        flags = ("--endpoint", "local", "--base-url", emulator.api_url, "--purpose", "fine-tune")
        assert await asyncio.to_thread(run, "upload", str(file), "--key", "in/a", *flags) == 0
    assert given == [{"path": "in/a", "filename": "rows.jsonl", "purpose": "fine-tune"}]
    assert capsys.readouterr().out == "file-1\n"


def test_what_is_missing_is_named_with_status_2(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert run("upload", str(file)) == 2
    assert "Set AWS_SECRET_ACCESS_KEY:" in capsys.readouterr().err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert run("upload", str(file)) == 1
    assert "The secret is not that of the access key" in capsys.readouterr().err
