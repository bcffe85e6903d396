"""The ways a command can end, and what the user sees of each.

Tests core/errors.py.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from horae import __version__
from horae.cli import policies
from horae.cli.lazy_commands import LazyGroup
from horae.cli.main import _take_debug, app
from tests.cli.conftest import Horae

PROGRAM = [sys.executable, "-m", "horae.cli.main"]
HEAVY = ("numpy", "numba", "polars", "matplotlib", "scipy", "yaml", "rich", "httpx", "fastapi", "sqlalchemy")


def test_the_version(horae: Horae) -> None:
    assert horae("--version").out == f"horae {__version__}\n"


def test_help_names_every_command(horae: Horae) -> None:
    answer = horae("--help")
    assert answer.code == 0
    assert all(name in answer.out for name in ("simulate", "compare", "trace", "policies", "--version", "--debug"))


def test_help_states_the_defaults(horae: Horae) -> None:
    text = " ".join(horae("simulate", "--help").out.split())
    assert "[default: best-effort]" in text
    assert "[default: 30.0; x>=0.0]" in text
    assert "[default: 0; x>=0]" in text


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from horae.cli.main import main; main(['--help']); main(['simulate', '--help']);"
        f"sys.exit(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_command_imports_no_other() -> None:
    script = (
        "import sys; from horae.cli.main import main; main(['queue', '--help']);"
        "print(sorted(name for name in sys.modules if name.startswith('horae.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "'horae.cli.live.queue'" in done.stderr
    for other in ("sweep", "simulate", "serve", "live.demo", "live.submission"):
        assert f"'horae.cli.{other}'" not in done.stderr


def test_every_command_is_there_and_says_of_itself_what_the_list_says() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    for name, late in group.late.items():
        made = group.get_command(None, name)
        assert made.name == name
        assert late.help == (made.help if isinstance(made, TyperGroup) else made.short_help)


def test_help_needs_none_of_the_heavy_libraries() -> None:
    """So it is instant: what takes time to start is the libraries, and a clock would blame a busy machine."""
    script = "import sys; from horae.cli.main import main; sys.argv = ['horae', '--help']\n"
    script += "try: main()\nexcept SystemExit: pass\n"
    script += "heavy = ('numba', 'scipy', 'highspy', 'polars', 'matplotlib', 'numpy')\n"
    script += "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert done.stderr.strip() == "[]"


def test_a_user_error_is_one_line_and_exit_code_1(horae: Horae) -> None:
    answer = horae("policies", "fifa")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: No policy is called 'fifa'. Did you mean 'fifo'? `horae policies` lists them.\n"


@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["simulate", "--cluster"],
        ["nothing"],
        ["policies", "--output", "xml"],
        ["compare", "--seeds", "x"],
    ],
)
def test_wrong_usage_is_exit_code_2(horae: Horae, words: list[str]) -> None:
    answer = horae(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert "Value error" not in answer.err
    assert "Input should" not in answer.err


def test_the_usage_line_names_arguments_plainly(horae: Horae) -> None:
    assert "[OPTIONS] [NAME]\n" in horae("policies", "--help").out
    assert "[OPTIONS] FILE\n" in horae("trace", "info", "--help").out


def test_a_group_alone_shows_its_help(horae: Horae) -> None:
    answer = horae("trace")
    assert answer.code == 2
    assert answer.err.startswith("Usage: horae trace")


def test_a_bug_is_one_line_with_the_path_of_a_report(
    horae: Horae, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(policies, "print_rich", lambda *_: 1 / 0)
    answer = horae("policies")
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert "bug in horae (ZeroDivisionError)" in answer.err
    report = Path(answer.err.split()[-1])
    assert report.is_relative_to(tmp_path)
    assert "print_rich" in report.read_text()


def test_debug_shows_the_traceback_wherever_it_stands(horae: Horae) -> None:
    from horae.core.errors import UserError

    for words in (["--debug", "policies", "fifa"], ["policies", "fifa", "--debug"]):
        with pytest.raises(UserError):
            horae(*words)


def test_debug_behind_two_dashes_belongs_to_somebody_else() -> None:
    assert _take_debug(["run", "--debug", "--", "train", "--debug"]) == (["run", "--", "train", "--debug"], True)
    assert _take_debug(["run", "--", "train", "--debug"]) == (["run", "--", "train", "--debug"], False)


def test_an_interrupt_is_one_line_and_exit_code_130(horae: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(policies, "print_rich", interrupt)
    answer = horae("policies")
    assert answer.code == 130
    assert answer.err.startswith("interrupted")
    assert answer.err.count("\n") == 1


def test_a_closed_pipe_is_met_in_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for form in ("table", "json", "csv"):
        done = subprocess.run([*PROGRAM, "policies", "-o", form], stdout=writer, stderr=subprocess.PIPE, check=False)
        assert done.stderr == b""
    os.close(writer)


def test_an_interrupted_comparison_ends_with_its_workers(tmp_path: Path) -> None:
    words = ["compare", "--generate", "plain", "--cluster", "4x4", "--jobs", "200000", "--html", tmp_path / "page.html"]
    with subprocess.Popen(
        [*PROGRAM, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        time.sleep(3)
        # Ctrl-C reaches every process of the terminal.
        os.killpg(program.pid, signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert program.returncode == 130
    assert (out, err) == ("", "interrupted; files named for output were left as they were\n")
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 10
    while living(program.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living(program.pid) == []


def living(group: int) -> list[str]:
    """Processes of a group that still do something; those that only wait to be buried do not count."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats.append(path.read_text())
    # After the name in brackets: state, parent, group.
    return [stat for stat in stats if stat.rpartition(")")[2].split()[2] == str(group) and ") Z " not in stat]


def test_values_that_need_no_conversion_cost_no_pydantic() -> None:
    """Its import takes longer than most commands; values that must be converted are still told in plain words."""
    script = "import sys; from horae.cli.main import main\n"
    script += "print(main(['queue', '--all', '-o', 'json', '--state', 'running', '--url', 'nowhere']))\n"
    script += "print('pydantic' in sys.modules, main(['queue', '--limit', 'x']), 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1", "False 2 True"]
    assert "it must be a whole number" in done.stderr
