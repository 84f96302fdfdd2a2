"""Plants defects in the critical modules, and counts those that their unit tests miss.

    python -m mutants [--count 100] [--jobs 2] [--only chunking]

cosmic-ray plants one defect at a time: another comparison, a number off by one, a negated
condition. Which of all possible ones are planted depends on the code alone, so two runs on the same
code are alike, and a change replaces few. ``survivors.txt`` lists those that no test notices. The
status is 1 if another one survives, or if a listed one does not any more: its line is then removed.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.commands
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.txt")
PYTHON = ROOT / ".venv" / "bin" / "python"
# Modules, and the tests that must notice their defects.
TESTED_BY = {
    "src/job_loop": "tests/unit/job_loop",
    "src/worker/bridge.py": "tests/unit/test_bridge.py tests/unit/app/test_ends.py",
    "src/worker/chunking.py": "tests/unit/test_chunking.py",
    "src/worker/long_work": "tests/unit/long_work",
    "src/worker/batches": "tests/unit/batches",
    "src/worker/fine_tunes": "tests/unit/fine_tunes",
    "src/worker/dialects/llm_engine": "tests/unit/dialects/llm_engine",
    "src/worker/dialects/openai/objects.py": "tests/unit/dialects/openai",
    "src/worker/volume/lease.py": "tests/unit/volume/test_lease.py",
    "src/worker/masking.py": "tests/unit/test_masking.py",
    "src/worker/logs/reader.py": "tests/unit/logs",
}
# The kinds of cosmic-ray's defects: of its operators that replace one by another, those that a
# person might confuse; most of the others fail on import, or mean the same.
PLANTED = re.compile(
    r"core/(AddNot|NumberReplacer|ExceptionReplacer|ZeroIterationForLoop|RemoveDecorator"
    r"|Replace(TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd|BreakWithContinue|ContinueWithBreak"
    r"|UnaryOperator_Delete_Not|BinaryOperator_(Add_Sub|Sub_Add)"
    r"|ComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In"
    r"|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt)))"
)
CREATE = WorkDB.Mode.create
# How long tests may take with a defect, in multiples of their time without one.
PATIENCE = 10


class Mutant(NamedTuple):
    """A defect that can be planted, and the tests that must notice it."""

    # Where and what it is, by the code alone: the same in a file that has moved lines.
    name: str
    spec: MutationSpec
    tests: str


def rank(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.name.encode()).hexdigest()


def mutants() -> Iterator[Mutant]:
    """Return all defects that can be planted in the tree of the working directory."""
    for path, tests in TESTED_BY.items():
        seen: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/w", CREATE) as work:
            cosmic_ray.commands.init(find_modules([Path(path)]), work, {})
            specs = [item.mutations[0] for item in work.work_items]
        for spec in specs:
            if not PLANTED.fullmatch(spec.operator_name):
                continue
            line = spec.module_path.read_text().splitlines()[spec.start_pos[0] - 1].strip()
            operator = spec.operator_name.removeprefix("core/")
            name = f"{spec.module_path}: {spec.definition_name}: {operator}: {line}"
            seen[name] += 1
            yield Mutant(f"{name} #{seen[name]}", spec, tests)


def command(tests: str) -> str:
    return f"{shlex.quote(str(PYTHON))} -m pytest -x -q -m 'not slow' -p no:cacheprovider {tests}"


def enter_copy(folder: str) -> None:
    """Make a copy of the repository, for this process alone, and go there."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (copy / ".models").symlink_to(ROOT / ".models")
    os.chdir(copy)


def seconds_without_defect(tests: str) -> float:
    """Run tests without a defect; raise CalledProcessError if one of them fails."""
    begun = time.monotonic()
    subprocess.run(shlex.split(command(tests)), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def survives(mutant: Mutant, patience_s: float) -> bool:
    """Plant a defect, and return whether all tests pass with it."""
    result = mutate_and_test([mutant.spec], command(mutant.tests), patience_s)
    if result.test_outcome not in (TestOutcome.SURVIVED, TestOutcome.KILLED):
        raise RuntimeError(f"{mutant.name}: {result.worker_outcome}, {result.output}")
    return bool(result.test_outcome is TestOutcome.SURVIVED)


def read_survivors() -> set[str]:
    return set(SURVIVORS.read_text().splitlines()) if SURVIVORS.exists() else set()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many defects (100)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at once")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name has it")
    args = parser.parse_args()
    os.chdir(ROOT)
    chosen = sorted(mutants(), key=rank)[: args.count]
    chosen = [mutant for mutant in chosen if args.only in mutant.name]
    listed = read_survivors() & {mutant.name for mutant in chosen}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.jobs, initializer=enter_copy, initargs=(folder,)) as pool,
    ):
        needed = sorted({mutant.tests for mutant in chosen})
        seconds = dict(zip(needed, pool.map(seconds_without_defect, needed), strict=True))
        patience = [PATIENCE * seconds[mutant.tests] for mutant in chosen]
        survivors = set()
        for mutant, survived in zip(chosen, pool.map(survives, chosen, patience), strict=True):
            print("survives" if survived else "noticed ", mutant.name, flush=True)
            survivors |= {mutant.name} if survived else set()
    gone = read_survivors() - {mutant.name for mutant in mutants()} if not args.only else set()
    for name in sorted(survivors - listed):
        print("No test notices:", name)
    for name in sorted((listed - survivors) | gone):
        print("Noticed now, or gone: remove from survivors.txt:", name)
    print(f"{len(chosen)} defects, {len(survivors)} survive, {len(listed)} of them known")
    return int(survivors != listed or bool(gone))


if __name__ == "__main__":
    sys.exit(main())
