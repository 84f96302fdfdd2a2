"""Writes the page of a proof with its plots, in its folder or in the documentation.

    PYTHONPATH=src:benchmarks .venv/bin/python builder/proof_page.py FOLDER [--docs]

The folder has the file result.json. With `--docs` the page is written to docs/proofs, and
docs/performance.md gets a row for it.
"""

import argparse
import re
from pathlib import Path

import matplotlib as mpl
import plots

from proof.machine.result import FILE_FORMAT, Proof, add_row, page
from proof.measure.processes import ROOT

DOCS = ROOT / "docs"


def slug(proof: Proof) -> str:
    """Return a name for files and links."""
    words = re.findall(r"[a-z0-9.]+", f"{proof.machine} {proof.model} {proof.date}".lower())
    return "-".join(words)


def write_page(proof: Proof, folder: Path) -> Path:
    """Write the plots and the page; return the page's path."""
    with mpl.rc_context(plots.STYLE):
        names = plots.save(plots.draw_proof(proof), folder)
    path = folder / "README.md"
    path.write_text(page(proof, names))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="write to the documentation")
    arguments = parser.parse_args()
    proof = FILE_FORMAT.validate_json((arguments.folder / "result.json").read_bytes())
    if not arguments.docs:
        write_page(proof, arguments.folder)
        print("The page has its plots.")
        return
    path = write_page(proof, DOCS / "proofs" / slug(proof))
    performance = DOCS / "performance.md"
    link = str(path.relative_to(DOCS))
    performance.write_text(add_row(proof, performance.read_text(), link))
    print(f"Written: {path.relative_to(ROOT)}, and a row of docs/performance.md")


if __name__ == "__main__":
    main()
