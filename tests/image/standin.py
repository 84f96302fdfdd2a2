"""A stand-in for vLLM's image: this machine's Python with the packages of that image except vLLM.

Like vLLM's image, it has only `python3` and no `python`. The packages that the Dockerfile installs
are already present, because a build must not need the network.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT

# Programs that the steps of the Dockerfile call.
PROGRAMS = ("sh", "ln", "rm")
# Packages for importing the SDK and the worker, and for downloading.
PACKAGES = ("pip", "huggingface_hub", "msgspec", "pydantic", "pyyaml", "prometheus_client")
DOCKERFILE = """\
FROM scratch
COPY root/ /
ENV PATH=/usr/local/bin:/usr/bin:/bin PIP_NO_INDEX=1
"""


def make(folder: Path) -> None:
    """Create a directory from which the stand-in can be built."""
    root = folder / "root"
    prefix, python = Path(sys.base_prefix), Path(sys.base_prefix) / "bin" / "python3"
    for directory in ("tmp", "root", "usr/local/bin"):
        (root / directory).mkdir(parents=True)
    (root / "usr/bin").mkdir()
    (root / "bin").symlink_to("usr/bin")
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(prefix)}))
    shutil.copytree(
        stdlib,
        within(root, stdlib),
        ignore=shutil.ignore_patterns(
            "site-packages", "test", "config-*", "__pycache__", "EXTERNALLY-MANAGED"
        ),
    )
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    copy_files([python, *programs], root)
    (root / "usr/local/bin/python3").symlink_to(python)
    packages = within(root, site_packages(python))
    for package in find_packages():
        install(package, packages)
    copy_files(find_libraries([*sorted(root.rglob("*.so*")), python, *programs]), root)
    (folder / "Dockerfile").write_text(DOCKERFILE)


def within(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def copy_files(files: list[Path], root: Path) -> None:
    for file in files:
        within(root, file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, within(root, file))


def site_packages(python: Path) -> Path:
    command = [str(python), "-c", "import site; print(site.getsitepackages()[0])"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def find_libraries(programs: list[Path]) -> list[Path]:
    """Return the libraries that programs or other libraries are linked with."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    found = re.findall(r"(?:=> |^\t)(/\S+) \(", listed.stdout, re.MULTILINE)
    return [Path(path) for path in sorted(set(found))]


def find_packages() -> list[Distribution]:
    """Return the installed packages that the image needs, with their requirements."""
    pinned = (ROOT / "builder" / "requirements.txt").read_text().splitlines()
    waiting = [line.partition("==")[0] for line in pinned if line and not line.startswith("#")]
    waiting += PACKAGES
    found: dict[str, Distribution] = {}
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            # The SDK lists packages that are not needed, such as the command line of fastapi.
            continue
        required = [Requirement(text) for text in found[name].requires or ()]
        waiting += [
            one.name for one in required if not one.marker or one.marker.evaluate({"extra": ""})
        ]
    return list(found.values())


def install(package: Distribution, target: Path) -> None:
    for file in package.files or ():
        source = Path(str(package.locate_file(file)))
        # Skips commands, which are outside of the package's directory.
        if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / file)
