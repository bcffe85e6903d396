"""The words of the code: modules say what they are, a class name means one thing, worn-out words stay away.

`CLEAN` and `WITH_README` list the packages that are held to it. Add a package when it keeps the rules.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "horae"
DOCS = Path(__file__).parents[1] / "docs"
GLOSSARY = DOCS / "reference" / "glossary.md"

#: Packages whose names a newcomer can guess: no worn-out word is an identifier there.
CLEAN = (
    "api",
    "backends",
    "backends/kubernetes",
    "backends/local",
    "backends/local/isolation",
    "backends/slurm",
    "client",
    "core",
    "experiments",
    "plugins",
    "policies",
    "policies/gavel",
    "policies/marginal_gain",
    "policies/ordering",
    "policies/themis",
    "policies/tiresias",
    "report",
    "report/audit",
    "report/metrics",
    "report/pages",
    "service",
    "service/api",
    "service/history",
    "service/store",
    "service/views",
    "simulator/audit",
    "solve",
    "solve/allocation",
    "solve/auction",
    "testing",
    "workload",
    "workload/formats",
    "workload/networks",
)

#: Packages that describe themselves: their README names every module, and no module that is gone.
WITH_README = (*CLEAN, "cli", "cli/live", "cli/setup", "simulator")

#: Design notes that are not held to naming files that are there.
UNCHECKED_PAGES: tuple[str, ...] = ()

#: Words that meant several things, or nothing to a newcomer. In brackets: the words to use.
WORN_OUT = {
    "heed": "wake_on, obey",
    "wishless": "no_wish",
    "lessons": "speed_learning",
    "standing": "status",
    "telling": "history",
    "said": "content, answer, document",
    "told": "the thing that was reported",
    "known": "finite, measured, names, ...",
    "one": "job, probe, setting, ...",
    "settle": "close, write, fix",
    "way": "choice, exchange, alternative",
    "ways": "choices, exchanges, alternatives",
    "whoever": "job, caller",
    "kind": "gpu_type, number_format, ...",
}

#: Where a worn-out word may stay, with the reason.
ALLOWED = {
    ("core/job_table.py", "kind"): "stored: a column of the job table",
    ("service/api/schemas.py", "Told"): "spoken: a schema of the published OpenAPI document",
    ("service/api/schemas.py", "kind"): "spoken: a key of the API",
    ("service/views/event_sentences.py", "kind"): "the same key",
    ("workload/skew.py", "kind"): "spoken: a key of `horae skew -o json`",
    ("workload/speed_observations.py", "kind"): "the same",
}

#: Distributions of their own, which cannot import the rest: their class names are their own, too.
OTHER_DISTRIBUTIONS = ("train",)

#: Classes that bear the name of another class, with the reason.
SAME_NAME: dict[str, str] = {
    "Bid": "service/api/agents.py: a schema of the published OpenAPI document",
    "Offer": "the same",
}


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that a module gives to something: variables, arguments, functions, classes, attributes of self."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                yield name


def repeated_classes() -> dict[str, list[str]]:
    """Names of classes that several modules define, one of them in a clean package, and those modules."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        if path.relative_to(SRC).parts[0] not in OTHER_DISTRIBUTIONS:
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(name_of(path))
    return {name: found for name, found in files.items() if len(found) > 1 and any(map(is_clean, found))}


def is_clean(file: str) -> bool:
    return Path(file).parent.as_posix() in CLEAN


def worn_out(tree: ast.AST, words: set[str]) -> set[str]:
    """Identifiers that are a worn-out word, with an underscore before them or without."""
    return {name for name in identifiers(tree) if name.strip("_").lower() in words}


def test_every_module_says_what_it_is() -> None:
    silent = [
        name_of(path) for path in modules() if path.name != "__init__.py" and not ast.get_docstring(tree_of(path))
    ]
    assert silent == []


def test_a_class_name_means_one_thing() -> None:
    assert {name: files for name, files in repeated_classes().items() if name not in SAME_NAME} == {}


def test_every_exception_for_a_class_name_is_still_needed() -> None:
    assert sorted(SAME_NAME) == sorted({*SAME_NAME} & {*repeated_classes()})


@pytest.mark.parametrize("package", CLEAN)
def test_worn_out_words_do_not_come_back(package: str) -> None:
    found = [
        f"{name_of(path)}: {name}; say {WORN_OUT[name.strip('_').lower()]}"
        for path in sorted((SRC / package).glob("*.py"))
        for name in sorted(worn_out(tree_of(path), {*WORN_OUT}))
        if (name_of(path), name) not in ALLOWED
    ]
    assert found == []


def test_every_exception_for_a_word_is_still_needed() -> None:
    needless = [entry for entry in ALLOWED if entry[1] not in worn_out(tree_of(SRC / entry[0]), {*WORN_OUT})]
    assert needless == []


@pytest.mark.parametrize("package", WITH_README)
def test_a_package_describes_all_its_modules_and_no_others(package: str) -> None:
    described = set(re.findall(r"`(\w+\.py)`", (SRC / package / "README.md").read_text(encoding="utf-8")))
    assert described - {"__init__.py"} == {path.name for path in (SRC / package).glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize("page", sorted({path.name for path in (DOCS / "design").glob("*.md")} - {*UNCHECKED_PAGES}))
def test_a_design_note_names_files_that_are_there(page: str) -> None:
    root = DOCS.parent
    files = [path.as_posix() for folder in ("src", "tests", "benchmarks") for path in (root / folder).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", (DOCS / "design" / page).read_text(encoding="utf-8"))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_a_word_of_the_glossary_has_one_meaning() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = [word for word in rows if word != "word"]
    assert len(words) > 80
    assert sorted({word for word in words if words.count(word) > 1}) == []


def test_worn_out_words_are_found_where_they_are() -> None:
    tree = ast.parse("def _settle(one, x=1):\n    self.told = [known for known in x]\n    job.said = x\n")
    assert worn_out(tree, {*WORN_OUT}) == {"_settle", "one", "told", "known"}
