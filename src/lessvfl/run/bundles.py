"""Bundles of defences, as ``--privacy`` chooses one: settings, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lessvfl.settings import unknown


@dataclass(frozen=True)
class Bundle:
    """Settings of defences that are chosen together; single ones may be set anew."""

    settings: Mapping[str, Any]
    cost: str  # in one sentence

    def words(self, name: str) -> str:
        """Say what it sets, and what that costs."""
        pairs = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"--privacy {name} sets {pairs}. {self.cost}"

    def changed(self, chosen: Mapping[str, Any]) -> list[str]:
        """Return as KEY=VALUE the `chosen` settings that differ from this bundle's."""
        wanted = dict(self.settings)
        if "embedding_noise" in wanted and chosen["embedding_epsilon"] is not None:
            del wanted["embedding_noise"]  # which the epsilon stands in the place of
            wanted["embedding_epsilon"] = None
        return [
            f"{name}={'none' if chosen[name] is None else chosen[name]}"
            for name, value in wanted.items()
            if chosen[name] != value
        ]


# Chosen by `lessvfl bench privacy`, whose figures are in docs/threat-model.md.
BUNDLES: Mapping[str, Bundle] = MappingProxyType(
    {
        "label-bound": Bundle(
            MappingProxyType({"label_epsilon": 3.0}),
            "It bounds what each label tells by that epsilon, and hides little from "
            "the attacks that were tried: of columns nothing. Measured on four tables: "
            "balanced accuracy fell by up to 0.03, and a seventh to half of the real "
            "features that are kept without it went.",
        ),
        "strict": Bundle(
            MappingProxyType({"label_epsilon": 1.0, "embedding_noise": 3.0}),
            "Measured on four tables: it is for selection alone, since the joint model "
            "is near guessing; two fifths of the real features that are kept without "
            "it went, or nearly all where rows are few or classes many.",
        ),
    }
)


def bundle_of(name: str) -> Bundle:
    """Return a bundle by its name, or refuse another name."""
    if name not in BUNDLES:
        raise unknown("privacy", name, BUNDLES)
    return BUNDLES[name]
