"""Pages made of Jinja2 templates, in the same way in every room that has some.

What comes from a record or a run is escaped wherever it stands. A template may have
lines and indents that its page does not have: between words they are one space, next to
a tag they are nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from base64 import b64encode
from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

AT_A_TAG = re.compile(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])")


class _OneLine(Extension):
    def preprocess(
        self, source: str, name: str | None, filename: str | None = None
    ) -> str:
        return re.sub(r"\s*\n\s*", " ", AT_A_TAG.sub("", source.strip()))


@functools.cache
def environment(*packages: str) -> Environment:
    """Find templates in the folders ``templates`` of packages, the first one first."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=[_OneLine],
    )
    made.globals["asset"] = lambda name: Markup(asset(packages[-1], name))
    return made


@functools.cache
def asset(package: str, name: str) -> str:
    """Return the style or the script of a package's pages.

    A style follows the one that all pages share.
    """
    paths = [resources.files(package) / name]
    if name.endswith(".css"):
        paths.insert(0, resources.files(__package__) / "page.css")
    return "".join(path.read_text(encoding="utf-8") for path in paths)


def digest(package: str, name: str) -> str:
    """Return the hash by which a content security policy names a style or a script."""
    text = asset(package, name)
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
