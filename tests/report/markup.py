"""What the tests of HTML pages share: a name that is markup, and a check that tags are balanced."""

from __future__ import annotations

from html.parser import HTMLParser

EVIL = "<script>alert('1')</script>&\"$x$"


class Outline(HTMLParser):
    """Checks that tags are balanced, and gathers what could reach outside."""

    EMPTY = ("meta", "br", "link", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag
