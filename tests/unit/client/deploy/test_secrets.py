"""Neither a plan nor the output contains a secret."""

from pathlib import Path

import pytest
from support.runpod_api.server import KEY, Fault, Runpod
from unit.client.deploy.conftest import FLAGS, Run

from llm_worker_client.deploy.settings import MASK, SecretMasker, contains_secret

TOKEN = "hf_abcdefghijklmnopqrst"
PLANTED = "planted-token-value"
FILE = f"name: chat\nimage: a/b:1\ngpu_pools: [ADA_24]\nsettings:\n  HF_TOKEN: {TOKEN}\n"


@pytest.mark.parametrize("setting", ["WANDB_API_KEY=0123456789", "SYSTEM_PROMPT=it is " + TOKEN])
@pytest.mark.parametrize("command", ["plan", "apply"])
def test_a_secret_in_a_plan_is_refused_by_its_name(
    run: Run, runpod: Runpod, command: str, setting: str
) -> None:
    status, out, err = run(command, *FLAGS, "--settings", setting)
    name, _, value = setting.partition("=")
    assert (status, out, runpod.calls) == (2, "", [])
    assert f"settings.{name}: a secret does not belong in a plan" in err
    assert value not in err
    assert TOKEN not in err


def test_a_secret_elsewhere_in_a_plan_is_refused(run: Run, tmp_path: Path) -> None:
    status, out, err = run("plan", *FLAGS, "--offline", "--args", f"run --token {TOKEN}")
    assert (status, TOKEN in out + err, "args: a secret" in err) == (2, False, True)
    (tmp_path / "endpoint.yaml").write_text(FILE)
    status, out, err = run("plan", "-f", tmp_path / "endpoint.yaml")
    assert (status, TOKEN in out + err) == (2, False)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "short", True),
        ("EMBEDDING_HF_TOKEN", "short", True),
        ("S3_SECRET_ACCESS_KEY", "0123456789", True),
        ("my_password", "x", True),
        ("DB_PASS", "x", True),
        ("SERVICE_APIKEY", "x", True),
        ("NOTE", "github_pat_0123456789ABCDEF", True),
        ("HTTPS_PROXY", "http://me:secret@proxy:3128", True),
        ("HF_TOKEN", f"{{{{ RUNPOD_SECRET_hf }}}} {TOKEN}", True),
        ("HF_TOKEN", "{{ RUNPOD_SECRET_hf }}", False),
        ("HF_TOKEN", "{{RUNPOD_SECRET_hf}}", False),
        ("HF_TOKEN", " ", False),
        ("HTTPS_PROXY", "http://me:{{ RUNPOD_SECRET_proxy }}@proxy:3128", False),
        ("TOKENIZER_NAME", "org/model", False),
        ("DEFAULT_MAX_TOKENS", "16", False),
        ("ALLOW_CREDENTIALS", "1", False),
    ],
)
def test_secrets_are_recognized_by_name_or_value(name: str, value: str, secret: bool) -> None:
    assert contains_secret(name, value) is secret


@pytest.mark.parametrize("words", [("--hf-token=mine",), ("--hf-token", "mine"), ("mine",)])
def test_unknown_arguments_are_not_repeated(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit):
        run("status", "chat", *words)
    err = capsys.readouterr().err
    assert ("unrecognized arguments: " in err, "mine" in err) == (True, False)


def test_secrets_of_an_existing_endpoint_are_masked_in_differences(
    run: Run, runpod: Runpod
) -> None:
    runpod.add(name="chat", env={"HF_TOKEN": PLANTED, "OLD": TOKEN})
    status, out, err = run("plan", *FLAGS)
    assert (status, "- env.HF_TOKEN: ***" in out) == (0, True)
    assert PLANTED not in out + err
    assert TOKEN not in out + err


@pytest.mark.parametrize("status", [403, 500])
def test_secrets_in_an_error_are_masked(run: Run, runpod: Runpod, status: int) -> None:
    runpod.add(name="chat", env={"HF_TOKEN": PLANTED})
    detail = f"Bearer {KEY} and {PLANTED} and {TOKEN}"
    runpod.faults.append(Fault("PATCH", status, detail=detail, errors=[detail], times=9))
    code, out, err = run("apply", *FLAGS)
    assert (code, MASK in err) == (1, True)
    assert [secret for secret in (KEY, PLANTED, TOKEN) if secret in out + err] == []


def test_secrets_in_logs_and_results_are_masked(run: Run, runpod: Runpod) -> None:
    runpod.result = {"status": "FAILED", "error": f"{KEY} {TOKEN}"}
    code, out, err = run("apply", *FLAGS)
    assert (code, TOKEN in out + err) == (1, False)
    runpod.endpoints["ep1"]["env"] = {"HF_TOKEN": PLANTED}
    line = f"{KEY} {PLANTED} {TOKEN}"
    runpod.log = [{"ts": "1", "source": "container", "line": line}]
    assert run("logs", "chat", "--worker", "w1")[1] == "*** *** ***\n"


def test_a_secret_is_masked_in_its_json_encoding_too() -> None:
    secrets = SecretMasker()
    secrets.add(['quo"ted\\secret'])
    assert secrets.mask('"quo\\"ted\\\\secret"') == f'"{MASK}"'
