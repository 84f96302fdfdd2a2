"""Budgets of the code and rules of its words, which no linter checks (CONTRIBUTING.md: Words)."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support import ROOT

SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("src", "builder", "benchmarks", "examples", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
# Tables of data: they grow by a row at a time, and are not read from top to bottom.
TABLES = ("builder/table/", "tests/support/tables/", "src/worker/limits/table.py")


@cache
def definitions(source: str) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def functions(source: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in definitions(source) if not isinstance(node, ast.ClassDef)]


def lines_of(source: str) -> int:
    """Count a module's lines, without its imports: moving a name must not cost a line here."""
    imports = [
        node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return len(source.splitlines()) - sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in imports
    )


def test_a_module_has_at_most_700_lines() -> None:
    lines = {name: lines_of(source) for name, source in SOURCES.items()}
    long = {name: count for name, count in lines.items() if count > 700}
    assert [name for name in long if not name.startswith(TABLES)] == []


# They catch bugs, whose traceback no caller may see, or which must not end a thread or a worker;
# any failure of a dead engine; a failed call of vLLM's core, which raises a plain Exception; and
# the code of models, their tokenizers and vLLM during a start, which raises anything.
BROAD_EXCEPTS = {
    "src/worker/background.py": 1,
    "src/worker/engine/cache_plan.py": 1,
    "src/worker/engine/run/adapters/__init__.py": 1,
    "src/worker/engine/seam/translation.py": 1,
    "src/worker/engine/start/checks.py": 1,
    "src/worker/engine/start/configuring.py": 2,
    "src/worker/engine/start/cores.py": 2,
    "src/worker/engine/start/launch.py": 1,
    "src/worker/engine/start/refusals.py": 1,
    "src/worker/engine/start/rehearsal.py": 1,
    "src/worker/errors.py": 1,
    "src/worker/sweep.py": 1,
}


def test_the_worker_has_few_broad_excepts() -> None:
    broad = re.compile(r"^\s*except( Exception| BaseException|:)", re.MULTILINE)
    found = {
        name: len(broad.findall(source))
        for name, source in SOURCES.items()
        if name.startswith("src/worker/")
    }
    assert {name: count for name, count in found.items() if count} == BROAD_EXCEPTS


def test_every_suppressed_rule_has_its_reason_on_its_line() -> None:
    bare = re.compile(r"#\s*(noqa|type: ignore)(:\s?[A-Z0-9, ]+|\[[\w, -]+\])?\s*$", re.MULTILINE)
    assert [name for name, source in SOURCES.items() if bare.search(source)] == []


YIELDED = re.compile(r"(?:Async)?(?:Iterator|Generator)\[(.+?)(?:, None){0,2}\]")


def test_a_fixtures_name_stands_for_one_type_in_all_tests() -> None:
    types: dict[str, set[str]] = defaultdict(set)
    for name, source in SOURCES.items():
        for node in ast.walk(ast.parse(source)) if name.startswith("tests/") else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                returned = ast.unparse(node.returns) if node.returns else ""
                yielded = YIELDED.fullmatch(returned.strip("'"))
                types[node.name].add(yielded[1] if yielded else returned)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_a_module_has_at_most_one_story_of_at_most_100_lines() -> None:
    stories = defaultdict(list)
    for name, source in SOURCES.items():
        lines = source.splitlines()
        for node in functions(source):
            if "PLR0915" in " ".join(lines[node.lineno - 1 : node.body[0].lineno - 1]):
                stories[name].append((node.end_lineno or node.lineno) - node.lineno + 1)
    assert {
        name: sizes for name, sizes in stories.items() if len(sizes) > 1 or max(sizes) > 100
    } == {}


# Words that make a reader stop, because they stand for a noun or have several meanings.
AVOIDED = (
    "told|whoever|whichever|likewise|nobody|of none|(?-i:is none)|are none|so many|so much|that of"
    "|but for|goes on|go on|at once|beside|room|anew|in words|held|kept|shown|given|asked"
)
IN_PAGES = re.compile(rf"\b(?:{AVOIDED})\b")
IN_CODE = re.compile(rf"\b(?:{AVOIDED}|tells?|what|as above)\b", re.IGNORECASE)
QUOTED = re.compile(r"^ *```.*?^ *```|``.*?``|`[^`\n]+`|\"[^\"\n]*\"", re.DOTALL | re.MULTILINE)
PAGES = {
    str(page.relative_to(ROOT)): QUOTED.sub("", page.read_text())
    for pattern in ("*.md", "docs/**/*.md", "src/*/README.md", "examples/*.md", "builder/*.md")
    for page in sorted(ROOT.glob(pattern))
}


def sentences(source: str) -> Iterator[str]:
    """Yield a module's docstrings and comments."""
    for node in [ast.parse(source), *definitions(source)]:
        yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_sentences_use_the_words_of_the_field() -> None:
    found = {
        name: IN_CODE.findall(QUOTED.sub("", "\n".join(sentences(source))))
        for name, source in SOURCES.items()
    }
    found |= {name: IN_PAGES.findall(text) for name, text in PAGES.items()}
    found |= {
        f"{name}: {node.name}": IN_CODE.findall(node.name.replace("_", " "))
        for name, source in SOURCES.items()
        for node in functions(source)
        if node.name.startswith("test_")
    }
    assert {name: words for name, words in found.items() if words} == {}


IRREGULAR = frozenset(
    "begun bent bought bound broken brought built caught chosen cut done drawn driven fallen fed"
    " forgotten found frozen gone grown heard hidden hung known laid led left lent lost made meant"
    " met paid said seen sent shut sold spent split spoken stolen stood stuck swept taken taught"
    " torn understood won worn woken written".split()
)
NO_PARTICIPLES = frozenset("bed embed exceed feed need proceed red seed shed speed".split())
PARTICLES = frozenset("as at away back by down for from in of off on out to up with".split())
# vLLM's class has this method.
NAMED_BY_PARTICIPLES = {"src/llm_worker_client/llm/outputs.py: finished"}


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith("ed") and word not in NO_PARTICIPLES)


def test_a_functions_name_is_not_a_participle() -> None:
    """Properties may be participles, and names may contain one, like ``served_model_names``."""
    found = {
        f"{name}: {node.name}"
        for name, source in SOURCES.items()
        for node in functions(source)
        if not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        for first, second, *_ in [[*node.name.strip("_").split("_"), "by"]]
        if is_participle(first) and (second in PARTICLES or is_participle(second))
    }
    assert found == NAMED_BY_PARTICIPLES


# vLLM and LLM Engine each have a class of this name.
NAMED_ALIKE = {"llm_worker_client: CompletionOutput"}


def test_a_class_has_a_name_of_its_own_in_its_package() -> None:
    classes = Counter(
        f"{name.removeprefix('src/').split('/')[0]}: {node.name}"
        for name, source in SOURCES.items()
        if name.startswith(("src/", "builder/", "tests/support/"))
        for node in definitions(source)
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} == NAMED_ALIKE


# Nouns with their general meaning in this field.
GENERAL = set(
    "api axis backend child children client completion conflict connection deploy"
    " download event file files forbidden form gpu gpus http hyperparameters"
    " integration item listable llm logprob logs lora machine message model"
    " models output page parser pause ports process progress proxy quantization"
    " queue renderer request requests response run serve state"
    " status stream tokenizer unauthorized upload usage"
    " webhooks".split()
) | {"fine tunes", "job loop", "llm engine", "llm worker client", "openai", "trainer"}


def test_the_glossary_has_the_nouns_of_folders_and_classes() -> None:
    glossary = (ROOT / "docs/architecture.md").read_text().partition("## Glossary")[2]
    entries = {
        word
        for row in re.findall(r"^\| (.+?) \|", glossary, re.MULTILINE)
        for word in row.split(", ")
    }
    entries |= set(re.findall(r"\*(\w+)\*", glossary))
    folders = {
        part for name in SOURCES if name.startswith("src/") for part in Path(name).parent.parts[1:]
    }
    classes = {
        node.name.strip("_")
        for name, source in SOURCES.items()
        if name.startswith("src/")
        for node in definitions(source)
        if isinstance(node, ast.ClassDef)
    }
    one_word = {name for name in classes if re.fullmatch(r"[A-Z][a-z]+|[A-Z]{2,}", name)}
    nouns = {noun.lower().replace("_", " ") for noun in folders | one_word}
    unknown = {
        noun
        for noun in nouns
        if not {noun, f"{noun}s", noun.removesuffix("s"), noun.removesuffix("es")} & entries
    }
    assert unknown == GENERAL
