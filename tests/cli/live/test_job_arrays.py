"""Arrays and grids."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.cli.live.job_arrays import BadGrid, expand, trials


def run_of(command: list[str], *grid: str, array: int | None = None) -> list[list[str]]:
    return [job["run"] for job in expand({"run": command}, trials(array, grid))]


def test_a_grid_is_every_combination_the_last_name_fastest() -> None:
    assert run_of(["t", "--lr={lr}", "{hidden}"], "lr=0.1,0.01", "hidden=16,32") == [
        ["t", "--lr=0.1", "16"],
        ["t", "--lr=0.1", "32"],
        ["t", "--lr=0.01", "16"],
        ["t", "--lr=0.01", "32"],
    ]


def test_an_array_counts_from_0() -> None:
    assert run_of(["t", "{index}"], array=3) == [["t", "0"], ["t", "1"], ["t", "2"]]


def test_a_grid_counts_as_well() -> None:
    assert run_of(["{x}{index}"], "x=a,b") == [["a0"], ["b1"]]


def test_values_go_into_variables_names_and_folders() -> None:
    job = {
        "name": "lr{lr}",
        "run": ["t"],
        "envs": {"LR": "{lr}", "N": 3},
        "workdir": "/w/{lr}",
        "checkpoint": {"dir": "/c/{index}", "grace": "5s"},
    }
    first, _ = expand(job, trials(None, ["lr=1,2"]))
    assert first == {
        "name": "lr1",
        "run": ["t"],
        "envs": {"LR": "1", "N": 3},
        "workdir": "/w/1",
        "checkpoint": {"dir": "/c/0", "grace": "5s"},
    }


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadGrid) as error:
        run_of(["t", "{hiden}"], "hidden=1,2")
    assert str(error.value) == (
        "{hiden} is not defined. Did you mean 'hidden'? "
        "Defined are {hidden}, {index}; write {{hiden}} for literal braces."
    )


def test_a_name_that_is_used_nowhere_is_refused() -> None:
    with pytest.raises(BadGrid, match=r"--grid lr is not used: write \{lr\}"):
        run_of(["t"], "lr=1,2")


def test_other_braces_stay() -> None:
    words = ["{{lr}}", "${lr}", "{}", "{0}", '{"a": {"b": 1}}', "{print $1}"]
    assert run_of(["{lr}", *words], "lr=1") == [["1", "{lr}", *words[1:]]]


def test_a_single_job_keeps_its_braces() -> None:
    assert run_of(["echo", "{anything}", "{{x}}"]) == [["echo", "{anything}", "{{x}}"]]


@pytest.mark.parametrize("word", ["lr", "lr=", "=1", "lr=1,,2", "l-r=1", "lr=1,1", "index=1"])
def test_a_grid_that_is_none(word: str) -> None:
    with pytest.raises(BadGrid):
        run_of(["{lr}"], word)


def test_a_name_twice_and_both_at_once_are_refused() -> None:
    with pytest.raises(BadGrid, match="twice"):
        run_of(["{lr}"], "lr=1", "lr=2")
    with pytest.raises(BadGrid, match="--array or --grid"):
        run_of(["{lr}"], "lr=1", array=2)


def test_too_many_are_refused_before_they_are_made() -> None:
    values = ",".join(map(str, range(1000)))
    with pytest.raises(BadGrid, match="1,000,000,000 jobs"):
        run_of(["{a}{b}{c}"], f"a={values}", f"b={values}", f"c={values}")


def test_trials_that_save_to_one_folder_are_refused() -> None:
    job = {"run": ["t", "{index}"], "checkpoint": {"dir": "/same"}}
    with pytest.raises(BadGrid, match=r"checkpoint\.dir"):
        expand(job, trials(2, ()))


@given(st.text(st.characters(exclude_characters=",\0", exclude_categories=["Cs"]), min_size=1))
def test_a_value_stays_one_word_in_text_for_the_shell(value: str) -> None:
    (job,) = expand({"run": "train --note {note}"}, trials(None, [f"note={value}"]))
    assert shlex.split(job["run"]) == ["train", "--note", value]


@given(st.text(st.characters(exclude_characters=",\0", exclude_categories=["Cs"]), min_size=1))
def test_a_value_is_put_into_words_as_it_is(value: str) -> None:
    assert run_of(["{note}"], f"note={value}") == [[value]]
