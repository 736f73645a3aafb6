"""A page as tests read it."""

import re
from html.parser import HTMLParser
from typing import Any

Attributes = dict[str, Any]


class Reader(HTMLParser):
    """Collect tags, cells and rows with their text, and all words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Attributes]] = []
        self.cells: list[tuple[Attributes, list[str]]] = []
        self.rows: list[tuple[Attributes, list[str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)
        if tag == "td":
            self.cells.append((dict(attrs), []))
        if tag == "tr":
            self.rows.append((dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] in ("style", "script"):
            return
        data = data.replace("\u00a0", " ")
        self.words.append(data)
        if "td" in self.open:
            self.cells[-1][1].append(data)
        if "tr" in self.open:
            self.rows[-1][1].append(data)


def read_whole(text: str) -> Reader:
    """Read a page, and check that it is one whole that needs nothing from outside."""
    reader = Reader(text)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in reader.tags].count("h1") == 1
    for word in ("http://", "https://", "@import"):
        assert word not in text
    for _, attrs in reader.tags:
        for name in ("src", "href", "action", "data"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:"))
            if value and value.startswith("#"):
                assert value[1:] in ids
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", text))
    return reader
