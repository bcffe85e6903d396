"""Objects by their place: files and modules."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from horae.plugins.places import CannotLoad, ObjectPlace, place_of


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("./mine.py:MyPolicy", ("./mine.py", "MyPolicy")),
        ("/a b/mine.py:P1", ("/a b/mine.py", "P1")),
        ("mine.py:P", ("mine.py", "P")),
        ("package.module:MyPolicy", ("package.module", "MyPolicy")),
        ("module:MyPolicy", ("module", "MyPolicy")),
    ],
)
def test_a_place_is_a_file_or_a_module_and_a_name(text: str, place: tuple[str, str]) -> None:
    assert place_of(text) == ObjectPlace(*place)
    assert str(place_of(text)) == text


@pytest.mark.parametrize(
    "text", ["las", "k80:1", "las:quantum=5", "", "a/b:C", "mine.py", "mine.py:a.b", "a:b:c", "1:a"]
)
def test_other_texts_are_none(text: str) -> None:
    assert place_of(text) is None


def test_a_file_is_run_once_for_each_content(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class A:\n    number = 1\n")
    place = ObjectPlace(str(path), "A")
    first = place.load()
    assert place.load() is first
    assert place.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("class A:\n    number = 2\n")
    assert place.load().number == 2


def test_dataclasses_with_late_annotations_work_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "@dataclass\nclass A:\n    unit: ClassVar[str] = 's'\n    size: int = 3\n"
    )
    assert ObjectPlace(str(path), "A").load()().size == 3


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("class A(:\n", r"mine.py cannot be loaded: SyntaxError: .*\(line 1\). Correct it"),
        ("import nothing_of_the_kind\n", r"ModuleNotFoundError: No module named 'nothing_of_the_kind' \(line 1\)"),
        ("x = 1\ny = x / 0\n", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("raise SystemExit('bye')\n", "SystemExit: bye"),
        ("class B: pass\n", "has no 'A'"),
        ("class Aa: pass\n", "Did you mean 'Aa'"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, source: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(CannotLoad, match=told) as error:
        ObjectPlace(str(path), "A").load()
    assert "\n" not in str(error.value)


def test_files_and_modules_that_are_not_there_are_told(tmp_path: Path) -> None:
    for place, told in (
        (ObjectPlace(str(tmp_path / "no.py"), "A"), "There is no file"),
        (ObjectPlace("nothing_of_the_kind.at_all", "A"), "No module is called"),
        (ObjectPlace("nothing_of_the_kind", "A"), "install it, put its folder on PYTHONPATH"),
    ):
        with pytest.raises(CannotLoad, match=told):
            place.load()
        with pytest.raises(CannotLoad, match=told):
            place.sha256()
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(CannotLoad, match="cannot be read"):
        ObjectPlace(str(tmp_path / "folder.py"), "A").load()


def test_a_module_that_fails_is_told_with_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_broken.py").write_text("import nothing_of_the_kind\n")
    (tmp_path / "outside_good.py").write_text("class A: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CannotLoad, match="Module outside_broken cannot be loaded: ModuleNotFoundError"):
        ObjectPlace("outside_broken", "A").load()
    good = ObjectPlace("outside_good", "A")
    assert good.load().__name__ == "A"
    assert good.sha256() == hashlib.sha256(b"class A: pass\n").hexdigest()
