"""No secret is in a plan, and none in what is printed."""

from pathlib import Path

import pytest
from support.runpod_api.server import KEY, Fault, Platform
from unit.client.deploy.conftest import FLAGS, Run

from llm_worker_client.deploy.secrets import MASK, Secrets, is_secret

TOKEN = "hf_abcdefghijklmnopqrst"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "short"),
        ("EMBEDDING_HF_TOKEN", "short"),
        ("WANDB_API_KEY", "0123456789"),
        ("S3_SECRET_ACCESS_KEY", "0123456789"),
        ("my_password", "x"),
        ("DB_PASS", "x"),
        ("SERVICE_APIKEY", "x"),
        ("NOTE", "github_pat_0123456789ABCDEF"),
        ("SYSTEM_PROMPT", f"the token is {TOKEN}"),
        ("HTTPS_PROXY", "http://me:secret@proxy:3128"),
        ("HF_TOKEN", f"{{{{ RUNPOD_SECRET_hf }}}} {TOKEN}"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "apply"])
def test_a_secret_in_a_plan_is_refused_by_its_name(
    run: Run, there: Platform, command: str, name: str, value: str
) -> None:
    status, out, err = run(command, *FLAGS, "--settings", f"{name}={value}")
    assert (status, out, there.calls) == (2, "", [])
    assert f"settings.{name}: a secret does not belong in a plan" in err
    assert value not in err
    assert TOKEN not in err


@pytest.mark.parametrize("words", [("--hf-token=mine",), ("--hf-token", "mine"), ("mine",)])
def test_words_that_are_not_understood_are_not_repeated(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit):
        run("status", "chat", *words)
    err = capsys.readouterr().err
    assert "unrecognized arguments: " in err
    assert "mine" not in err


def test_a_secret_in_the_start_command_is_refused(run: Run) -> None:
    status, out, err = run("plan", *FLAGS, "--offline", "--args", f"run --token {TOKEN}")
    assert (status, TOKEN in out + err, "args: a secret" in err) == (2, False, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "{{ RUNPOD_SECRET_hf }}"),
        ("HF_TOKEN", "{{RUNPOD_SECRET_hf}}"),
        ("HF_TOKEN", " "),
        ("HTTPS_PROXY", "http://me:{{ RUNPOD_SECRET_proxy }}@proxy:3128"),
        ("TOKENIZER_NAME", "org/model"),
        ("DEFAULT_MAX_TOKENS", "16"),
        ("ALLOW_CREDENTIALS", "1"),
    ],
)
def test_references_and_what_only_sounds_so_are_no_secrets(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_secrets_that_others_have_set_are_masked_in_differences(run: Run, there: Platform) -> None:
    env = {"HF_TOKEN": "planted-token-value", "OLD": TOKEN}
    there.add(name="chat", env=env)
    status, out, err = run("plan", *FLAGS)
    assert status == 0
    assert "- env.HF_TOKEN: ***" in out
    assert "planted-token-value" not in out + err
    assert TOKEN not in out + err


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422, 429, 500])
def test_a_failure_that_quotes_secrets_is_masked(run: Run, there: Platform, status: int) -> None:
    there.add(name="chat", env={"HF_TOKEN": "planted-token-value"})
    detail = f"Bearer {KEY} and planted-token-value and {TOKEN}"
    there.faults.append(Fault("PATCH", status, detail=detail, errors=[detail], times=9))
    code, out, err = run("apply", *FLAGS)
    assert code == 1
    for secret in (KEY, "planted-token-value", TOKEN):
        assert secret not in out + err
    assert MASK in err


def test_a_log_is_masked(run: Run, there: Platform) -> None:
    there.add(name="chat", env={"HF_TOKEN": "planted-token-value"})
    line = f"{KEY} planted-token-value {TOKEN}"
    there.log = [{"ts": "1", "source": "container", "line": line}]
    _, out, _ = run("logs", "chat", "--worker", "w1")
    assert out == "*** *** ***\n"


def test_what_a_job_answers_is_masked(run: Run, there: Platform) -> None:
    there.result = {"status": "FAILED", "error": f"{KEY} {TOKEN}"}
    code, out, err = run("apply", *FLAGS)
    assert (code, TOKEN in out + err) == (1, False)


def test_a_file_of_a_plan_with_a_secret_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(
        f"name: chat\nimage: a/b:1\ngpu_pools: [ADA_24]\nsettings:\n  HF_TOKEN: {TOKEN}\n"
    )
    code, out, err = run("plan", "-f", file)
    assert (code, TOKEN in out + err) == (2, False)


def test_a_secret_is_masked_however_it_is_written() -> None:
    secrets = Secrets(['quo"ted\\secret'])
    assert secrets.masked('"quo\\"ted\\\\secret"') == f'"{MASK}"'
