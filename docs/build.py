"""Builds the documentation: the command reference from --help, every link checked, HTML in build/docs."""

from __future__ import annotations

import html
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt

from horae.cli.main import app

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SITE = ROOT / "build" / "docs"
REFERENCE = DOCS / "reference" / "cli.md"

INTRODUCTION = """\
# Commands

Written from `--help` by `make docs`; change the text in `src/horae/cli/`.

Every command answers on stdout, as a table or with `-o json` or `-o csv`; notes, progress and errors go to stderr.
Exit codes: 0 ok, 1 failure, 2 wrong usage, 130 interrupted. `horae logs`, `horae wait` and `horae submit --wait` tell
how a job ended: 0 succeeded, 100 failed, 101 not finished, 102 not found, 103 cancelled, 104 time limit.

`horae simulate -o json` prints one object: the [metrics](metrics.md) of the run, and what the whole process has cost
(`cpu_s` with its children, imports and compilation; `wall_s`; `peak_rss_mb` of the largest process). `horae compare
-o json` prints `seeds`, the same cost, and `policies`, a list of such objects; with several seeds each holds means, and
`ci95` the half-widths of their 95 % confidence intervals in the same shape. `horae sweep -o json` prints `points`
instead: such objects with what is varied (`vary`), its `value` (`null` for a policy that does not have it and was run
once) and the policy's `label`. A number that could not be measured is `null`. In CSV, what is nested becomes a column
such as `rho.max`.
"""
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ max-width: 52rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.6 system-ui, sans-serif; color: #222 }}
pre {{ background: #f5f5f2; padding: .8rem; overflow-x: auto; font-size: .85rem; line-height: 1.4 }}
code {{ background: #f5f5f2 }} a {{ color: #14639e }} img {{ max-width: 100% }}
table {{ border-collapse: collapse }} td, th {{ border-bottom: 1px solid #ddd; padding: .3rem .8rem .3rem 0;
text-align: left; vertical-align: top }}
</style></head><body><nav><a href="{home}">Horae</a></nav>
{body}
</body></html>
"""


def main() -> int:
    """Write the reference, check the links, write the pages; 1 if a link leads nowhere."""
    REFERENCE.write_text(command_reference(), encoding="utf-8")
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    broken = [f"{page.relative_to(ROOT)}: {link}" for page in pages for link in broken_links(page)]
    for line in broken:
        print(f"broken link in {line}", file=sys.stderr)
    shutil.rmtree(SITE, ignore_errors=True)
    for page in pages:
        write_page(page)
    copy_images()
    print(f"{len(pages)} pages in {SITE}; start with {SITE / 'docs' / 'index.html'}")
    return 1 if broken else 0


def command_reference() -> str:
    """The help of every command, as Markdown."""
    sections = [f"\n## {name}\n\n```text\n{text}\n```\n" for name, text in helps(typer.main.get_command(app), "horae")]
    return INTRODUCTION + "".join(sections)


def helps(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """Name and help of a command and of everything below it."""
    width = {"terminal_width": 110, "max_content_width": 110}
    with command.make_context(name, [], parent=parent, resilient_parsing=True, **width) as context:
        yield context.command_path, command.get_help(context)
        for child_name in getattr(command, "commands", ()):
            yield from helps(command.get_command(context, child_name), child_name, context)


def broken_links(page: Path) -> Iterator[str]:
    """Links of a page to files or headings that are not there."""
    for link in links(page):
        if re.match(r"\w+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in headings(target)):
            yield link


def links(page: Path) -> Iterator[str]:
    """Where the links and pictures of a page lead."""
    for block in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        for token in block.children or ():
            target = token.attrs.get("href" if token.type == "link_open" else "src")
            if token.type in ("link_open", "image") and target:
                yield str(target)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts form them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {anchor(line) for line in lines}


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def render(text: str) -> str:
    """Markdown as HTML, with an anchor on every heading and links that lead to HTML."""
    markdown = MarkdownIt().enable("table")
    tokens = markdown.parse(text)
    for token, inner in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(inner.content))
    body: str = markdown.renderer.render(tokens, markdown.options, {})
    return re.sub(r'href="((?!\w+:)[^"#]*)\.md(#[^"]*)?"', r'href="\1.html\2"', body)


def write_page(page: Path) -> None:
    """One page as HTML, at the same place below build/docs."""
    text = page.read_text(encoding="utf-8")
    title = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")), page.stem)
    target = SITE / page.relative_to(ROOT).with_suffix(".html")
    target.parent.mkdir(parents=True, exist_ok=True)
    depth = len(target.relative_to(SITE).parents) - 1
    home = "../" * depth + "docs/index.html"
    target.write_text(PAGE.format(title=html.escape(title), home=home, body=render(text)), encoding="utf-8")


def copy_images() -> None:
    """Pictures, where the pages look for them."""
    if (DOCS / "images").is_dir():
        shutil.copytree(DOCS / "images", SITE / "docs" / "images")


if __name__ == "__main__":
    sys.exit(main())
