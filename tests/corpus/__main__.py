"""Judge the whole corpus, and print what came out.

python -m tests.corpus                 # all, about half an hour of one core
python -m tests.corpus 'few_rows/*'    # some tables
python -m tests.corpus --part 0/8      # every eighth
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections import Counter
from typing import get_args

import torch
from tests.corpus import metamorphic
from tests.corpus.judge import Case, Outcome, Verdict, cases_of, judge
from tests.corpus.tables import all_specs


def main() -> int:
    """Return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--part", default="0/1", help="PLACE/OF: every OF-th table")
    parser.add_argument("--way", choices=["run", "estimator"], help="only this one")
    parser.add_argument("--no-changes", action="store_true", help="tables alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    place, of = map(int, asked.part.split("/"))
    specs = [s for s in all_specs() if fnmatch.fnmatch(s.name, asked.pattern)]
    began, found = time.monotonic(), list[tuple[Case, Outcome]]()
    for spec in specs[place::of]:
        for case in cases_of(spec):
            if asked.way in (None, case.way):
                outcome = judge(case)
                found.append((case, outcome))
                if outcome.is_wrong:
                    _say(f"{case.name}: {outcome.verdict}: {outcome.why}")
    wrong = any(outcome.is_wrong for _, outcome in found)
    _summarise(found, time.monotonic() - began)
    if not asked.no_changes:
        wrong |= _changes()
    return int(wrong)


def _summarise(found: list[tuple[Case, Outcome]], seconds: float) -> None:
    by_verdict = Counter(outcome.verdict for _, outcome in found)
    _say(f"\ntables        {len({case.spec for case, _ in found})}")
    _say(f"runs and fits {len(found)}")
    for verdict in get_args(Verdict):
        _say(f"{verdict:<14}{by_verdict[verdict]}")
    for method in sorted({case.method for case, _ in found}):
        own = [outcome for case, outcome in found if case.method == method]
        n_wrong = sum(outcome.is_wrong for outcome in own)
        _say(f"  {method:<16}{len(own):>5} of which wrong {n_wrong}")
    _say(f"seconds       {seconds:.0f}")


def _changes() -> bool:
    """Print how far selections agree; tell whether anything is violated."""
    _say(f"\n{'change':<24}tables  equal  mean Jaccard")
    is_wrong = False
    for one in metamorphic.agreements():
        n_equal = sum(index == 1 for index in one.indices)
        mark = "  VIOLATED" if one.is_violated else ""
        is_wrong |= one.is_violated
        counts = f"{len(one.indices):>6}{n_equal:>7}{one.mean:>14.3f}"
        _say(f"{one.change.name:<24}{counts}{mark}")
    return is_wrong


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
