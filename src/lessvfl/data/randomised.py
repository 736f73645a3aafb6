"""Labels that are randomised once, so that training knows no true one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset
from lessvfl.data.labels import LabelConfig, check_labels
from lessvfl.privacy.mechanisms import RandomisedResponse
from lessvfl.terms import stream_seed

WORD = 2.0**-64  # a draw of 64 bits as a share


def randomise(
    dataset: Dataset, labels: LabelConfig, draws: NDArray[np.float64] | None = None
) -> Dataset:
    """Return the data set with labels for training that are randomised, if asked for.

    The same row has the same label in every run with this epsilon: without `draws`
    (N,), evenly between 0 and 1, they are drawn by the place of a row in the table.
    """
    if labels.label_epsilon is None:
        return dataset
    check_labels(dataset, labels)
    mechanism = RandomisedResponse(labels.label_epsilon, len(dataset.label_names))
    if draws is None:
        rng = np.random.default_rng(stream_seed(0, "labels", *_names_of(mechanism)))
        draws = rng.random(len(dataset.y))
    return replace(dataset, randomised=mechanism.apply(dataset.y, draws))


def draws_of(
    ids: Iterable[object], secret: bytes, mechanism: RandomisedResponse
) -> NDArray[np.float64]:
    """Return a draw for each id that nobody without the secret can know.

    Another epsilon has draws of its own: by the same one, a row told otherwise under
    two of them would give its label away.
    """
    how = "/".join(_names_of(mechanism))
    digests = (
        hmac.digest(secret, f"{how}/{one}".encode(), hashlib.sha256)[:8] for one in ids
    )
    words = np.frombuffer(b"".join(digests), dtype=">u8")
    return np.asarray(words * WORD, dtype=np.float64)


def _names_of(mechanism: RandomisedResponse) -> tuple[str, str]:
    return repr(float(mechanism.epsilon)), str(mechanism.n_classes)
