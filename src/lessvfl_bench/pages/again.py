"""A benchmark's page, made again from the results in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lessvfl.errors import RecordError
from lessvfl_bench.pages.equal import build_equal
from lessvfl_bench.pages.paper.page import build_bench
from lessvfl_bench.pages.peers import build_peers
from lessvfl_bench.pages.privacy import build_privacy
from lessvfl_bench.pages.rivals import build_rivals
from lessvfl_bench.pages.theory import build_theory

PageBuilder = Callable[[Mapping[str, Any], Path], Path]
MAY_BE_EMPTY = ("tables", "figures", "verdicts", "breakdown", "behind")


def _needing(build_page: PageBuilder, *keys: str) -> Callable[[Path], Path]:
    """Return what makes a page of a file of results that hold some keys."""

    def build(file: Path) -> Path:
        wrong = f"'{file}' must be results as 'lessvfl bench' writes them"
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            raise RecordError(f"{wrong}. Got what is no JSON.") from None
        own = results if isinstance(results, dict) else {"cases": results}
        for key in keys:
            if not own.get(key) and not (key in own and key in MAY_BE_EMPTY):
                raise RecordError(
                    f"The results in '{file.parent}' must hold {', '.join(keys)}, as "
                    f"'lessvfl bench' writes them. Got no {key}."
                )
        try:
            return build_page(own, file.parent)
        except RecordError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise RecordError(
                f"{wrong}. Got entries of another form, or of another version of "
                "lessvfl."
            ) from error

    return build


def _of_cases(results: Mapping[str, Any], folder: Path) -> Path:
    """Make the page of a study whose results are a list of cases."""
    found = {tuple(one["case"]): one["found"] for one in results["cases"]}
    return build_privacy(found, folder)


paper = _needing(build_bench, "seeds", "data", "tables", "figures")
equal = _needing(build_equal, "seeds", "data", "rows", "verdicts", "breakdown")
peers = _needing(build_peers, "seeds", "data", "methods", "results")
privacy = _needing(_of_cases, "cases")
rivals = _needing(build_rivals, "seeds", "places", "rows", "verdicts", "behind")
theory = _needing(build_theory, "seeds", "n", "results")
