"""The steps of a release, which the Makefile calls: ``python -m release``."""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from release.issue import open_issue
from release.newest import CUDA_BUILD, newest_vllm
from release.plan import ROOT, Plan, image_tag, plan, vllm_version

_BASE = ROOT / "builder" / "release" / "base-image.txt"
_SBOM = ROOT / ".release" / "sbom.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("dry", "check", "notes", "outputs", "publish"):
        step = steps.add_parser(name)
        step.add_argument("tag", help="git tag, such as v0.1.0")
        step.add_argument("--image", default="llm-worker", help="name of the image, without a tag")
    for name in ("base-image", "newest", "watch"):
        steps.add_parser(name)
    issue = steps.add_parser("issue")
    issue.add_argument("title")
    issue.add_argument("body")
    arguments = parser.parse_args()
    if arguments.step == "issue":
        print(open_issue(arguments.title, arguments.body))
    elif arguments.step == "newest":
        print(newest_vllm())
    elif arguments.step == "watch":
        watch()
    elif arguments.step == "base-image":
        pin_base_image()
    else:
        _STEPS[arguments.step](plan(arguments.tag, arguments.image))


def print_plan(release: Plan) -> None:
    """Print the parts of a release and its problems."""
    section = release.section
    print(f"tag     {release.tag}")
    for image in release.images:
        print(f"image   {image}")
    print(f"base    {release.base}")
    for problem in release.problems:
        print(f"missing {problem}")
    print(f"sbom    {_SBOM.relative_to(ROOT)}: {count_packages(_SBOM)} packages")
    print(f"notes   {len(section.notes.splitlines()) if section else 0} lines\n")
    print(section.notes if section else "")


def count_packages(sbom: Path) -> int:
    """Return the number of components in a CycloneDX file; 0 if it doesn't exist (make sbom)."""
    return len(json.loads(sbom.read_text())["components"]) if sbom.is_file() else 0


def check_plan(release: Plan) -> None:
    """Exit with status 1 if the release has problems."""
    if release.problems:
        sys.exit("\n".join(release.problems))


def notes(release: Plan) -> None:
    """Print the release notes."""
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
    view = ("gh", "repo", "view", "--json=url", "--jq=.url")
    url = subprocess.run(view, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
        file.write(
            make_links_absolute(release.section.notes if release.section else "", url, release.tag)
        )
        file.flush()
        arguments = ("--verify-tag", f"--title={release.tag}", f"--notes-file={file.name}")
        subprocess.run(("gh", "release", "create", release.tag, *arguments), check=True)


def make_links_absolute(notes: str, url: str, tag: str) -> str:
    """Make links to files of the repository absolute, because a release is not one of its pages."""
    return re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/{tag}/", notes)


def pin_base_image() -> None:
    """Write the current digest of the base image's tag."""
    tag = f"docker.io/vllm/vllm-openai:v{vllm_version()}"
    inspect = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")
    inspection = subprocess.run((*inspect, tag), check=True, stdout=subprocess.PIPE, text=True)
    _BASE.write_text(f"{tag}@{inspection.stdout.strip()}\n")
    print(_BASE.read_text(), end="")


def watch() -> None:
    """Open an issue if there is a newer vLLM than the image has."""
    newest, ours = newest_vllm(CUDA_BUILD), vllm_version()
    if newest == ours:
        print(f"vLLM {ours} is the newest")
        return
    test = f"`make test-vllm VLLM={newest}` tests it"
    if (newest_cpu := newest_vllm()) != newest:
        test = (
            "It can't be tested yet: the newest CPU build, on which the tests run, is "
            f"{newest_cpu}. Once its own exists, {test}"
        )
    body = (
        f"The worker is for vLLM {ours}. What to do: CONTRIBUTING.md, *Moving to a new vLLM*.\n\n"
        f"`make vllm-news VLLM={newest}` lists what moved. {test}."
    )
    print(open_issue(f"vLLM {newest} is out", body))


_STEPS = {
    "dry": print_plan,
    "check": check_plan,
    "notes": notes,
    "outputs": print_outputs,
    "publish": publish,
}

if __name__ == "__main__":
    main()
