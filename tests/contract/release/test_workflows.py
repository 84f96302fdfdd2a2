"""Tests that the steps of GitHub's workflows are commands of developers, or pinned actions.

And that Dependabot updates the pins.
"""

import re
from typing import Any

import pytest
import yaml
from release.__main__ import main as release
from support import ROOT

pytestmark = pytest.mark.contract

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(FOLDER.iterdir())}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):.*?##", MAKEFILE, re.MULTILINE))
SESSIONS = set(re.findall(r"(?m)^def (\w+)\(session: nox", (ROOT / "noxfile.py").read_text()))
STEPS: list[tuple[str, dict[str, Any]]] = [
    (f"{workflow}/{name}", step)
    for workflow, content in WORKFLOWS.items()
    for name, job in content["jobs"].items()
    for step in job["steps"]
]
COMMANDS = [(job, step["run"], step.get("env", {})) for job, step in STEPS if "run" in step]


def test_every_command_is_a_target_a_session_or_a_step_of_a_release() -> None:
    """Other commands would only run on GitHub's machines."""
    root = r'(?:sudo --preserve-env env PATH="\$PATH" REQUIRE_ROOT=1 )?'
    known = re.compile(
        rf"{root}make (?P<target>[a-z-]+)"
        rf"|{root}(?:\.venv/bin/|pipx run --spec nox==(?P<nox>\S+) )nox"
        r' -s "?(?P<session>\w+)(?:\(\$RELEASE\))?"?(?: -- .+)?'
        r"|python -m release (?P<step>[a-z-]+)(?: .+)?"
        r"|docker run (?P<image>.+)"
        # Only a workflow has the identity with which it signs and publishes.
        r"|cosign sign --yes (?P<signed>.+)"
        r"|pipx run uv==(?P<uv>\S+) publish (?P<published>.+)"
    )
    found = [(job, known.fullmatch(command.strip())) for job, command, _ in COMMANDS]
    assert [job for job, match in found if match is None] == []
    matches = [match for _, match in found if match]
    assert {match["target"] for match in matches} - {None} <= TARGETS
    assert {match["session"] for match in matches} - {None} <= SESSIONS
    steps = {match["step"] for match in matches} - {None}
    assert steps
    assert all(
        env.get("PYTHONPATH") == "builder"
        for _, command, env in COMMANDS
        if command.startswith("python -m release")
    )
    pins = "".join(
        (ROOT / "builder" / name).read_text()
        for name in ("requirements-cpu.txt", "release/requirements.txt")
    )
    for tool in ("nox", "uv"):
        (version,) = {match[tool] for match in matches} - {None}
        assert f"\n{tool}=={version}\n" in pins
    for step in steps:
        with pytest.raises(SystemExit, match="0"):
            release([step, "--help"])


def test_no_command_has_an_expression_which_the_shell_would_execute() -> None:
    assert [job for job, command, _ in COMMANDS if "${{" in command] == []


def test_the_check_workflow_runs_every_command_of_the_ci_script() -> None:
    """Except for the job and the doctor, and with pipx's nox if no engine is needed."""
    script = (ROOT / ".ci" / "run").read_text()
    landing = set(re.findall(r"(?m)^(?:if .+ then )?(make \w+|\S+nox -s \w+)(?:;|$)", script))
    checks = " ".join(command for job, command, _ in COMMANDS if job.startswith("check/"))
    assert len(landing) >= 4
    for command in landing:
        assert command.rpartition("/")[2] in checks


def test_each_job_has_only_the_rights_that_it_needs() -> None:
    rights = {
        f"{workflow}/{name}": {
            right for right, level in job["permissions"].items() if level != "read"
        }
        for workflow, content in WORKFLOWS.items()
        for name, job in content["jobs"].items()
    }
    with_token = {job for job, _, env in COMMANDS if "GH_TOKEN" in env}
    assert {job: found for job, found in rights.items() if found and job not in with_token} == {
        "release/image": {"packages", "id-token"},
        "release/index": {"attestations", "id-token"},
        "site/deploy": {"pages", "id-token"},
        "check/codeql": {"security-events"},
    }
    assert {job: rights[job] for job in with_token} == {
        "nightly/report": {"issues"},
        "watch/vllm": {"issues"},
        "release/publish": {"contents"},
        "release/site": {"actions"},
    }
    assert all(content["permissions"] == {} for content in WORKFLOWS.values())


def test_no_job_that_can_sign_or_publish_installs_the_tested_packages() -> None:
    """Of some hundred packages, one could use the job's identity."""
    for job, command, _ in COMMANDS:
        workflow, _, name = job.partition("/")
        if "id-token" in WORKFLOWS[workflow]["jobs"][name]["permissions"]:
            assert not re.search(r"make (install|test)|nox -s (test_wheel|sbom)", command), job


def test_a_release_publishes_the_files_that_were_tested_and_then_the_site() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    commands = [command for job, command, _ in COMMANDS if job == "release/client"]
    assert ".venv/bin/nox -s test_wheel" in commands
    assert (jobs["index"]["needs"], jobs["site"]["needs"]) == (["image", "client"], "publish")
    (upload,) = [step["with"] for _, step in STEPS if "upload-artifact@" in step.get("uses", "")]
    downloads = [step["with"] for _, step in STEPS if "download-artifact@" in step.get("uses", "")]
    assert downloads == [{"name": upload["name"], "path": upload["path"]}] * 2
    # YAML reads "on" as a boolean. Only this event can be caused with a workflow's token.
    assert set(WORKFLOWS["site"][True]) == {"workflow_dispatch"}


def test_each_action_is_pinned_to_one_commit_with_its_version() -> None:
    text = "".join(file.read_text() for file in FOLDER.iterdir())
    pinned = set(re.findall(r"uses: (\S+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)\n", text))
    assert {f"{name}@{commit}" for name, commit, _ in pinned} == {
        step["uses"] for _, step in STEPS if "uses" in step
    }
    # Parts of one action have the same commit.
    versions = {(re.sub(r"(/[^/]+)/.*", r"\1", name), commit) for name, commit, _ in pinned}
    assert len({name for name, _ in versions}) == len(versions)


def find_folders(pattern: str) -> set[str]:
    """Return the folders that have a file whose name matches a pattern."""
    files = [file for top in ("builder", "tests") for file in (ROOT / top).rglob(pattern)]
    return {f"/{file.parent.relative_to(ROOT)}" for file in files}


def test_dependabot_updates_all_pins_except_those_of_vllm_and_of_the_tested_clients() -> None:
    content = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())
    folders = {
        one["package-ecosystem"]: set(one.get("directories", ())) for one in content["updates"]
    }
    assert folders["npm"] == find_folders("package-lock.json")
    assert folders["pip"] == find_folders("*requirements.txt") - {"/builder", "/tests/clients"}
    assert all(update["cooldown"]["default-days"] >= 7 for update in content["updates"])


def test_each_release_of_vllm_and_of_the_sdk_with_pins_is_tested() -> None:
    jobs = WORKFLOWS["check"]["jobs"]
    pinned = {file.stem for file in (ROOT / "tests" / "vllm-releases").glob("*.txt")}
    assert set(jobs["vllm"]["strategy"]["matrix"]["release"]) == pinned
    listed = re.search(r"^SDK_RELEASES = \[(.+)\]$", (ROOT / "noxfile.py").read_text(), re.M)
    assert listed
    assert set(jobs["sdk"]["strategy"]["matrix"]["release"]) == set(
        re.findall(r'"([^"]+)"', listed[1])
    )


def test_a_release_image_has_an_sbom_provenance_and_a_base_pinned_by_digest() -> None:
    (build,) = [step for _, step in STEPS if step.get("with", {}).get("push")]
    assert build["with"]["sbom"] is True
    assert build["with"]["provenance"] == "mode=max"
    assert build["with"]["build-args"].splitlines() == [
        "BASE_IMAGE=${{ steps.release.outputs.base-image }}",
        "WORKER_COMMIT=${{ github.sha }}",
    ]
    jobs = WORKFLOWS["release"]["jobs"]
    assert (jobs["image"]["needs"], jobs["publish"]["needs"]) == ("check", ["image", "index"])
    (sign,) = [step for _, step in STEPS if "cosign sign" in step.get("run", "")]
    assert sign["run"] == 'cosign sign --yes "$IMAGE@$DIGEST"'
    assert sign["env"]["DIGEST"] == f"${{{{ steps.{build['id']}.outputs.digest }}}}"
