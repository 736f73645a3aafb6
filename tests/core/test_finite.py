"""Numbers are checked where they are made."""

import math

import pytest
import torch

from lessvfl.core.finite import finite
from lessvfl.errors import DivergenceError


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(bad):
    for values in ([0.5, None, bad], torch.tensor([[0.5, 1.0], [bad, 2.0]])):
        with pytest.raises(DivergenceError, match=r"^The scores of 'x' .* at place 2"):
            finite("The scores of 'x'", values)


def test_numbers_come_back_as_they_are():
    values, tensor = [0.5, None, -1e300], torch.tensor([1.0, 2.0])
    assert finite("x", values) is values
    assert finite("x", tensor) is tensor
    assert finite("x", {"a": 1.0}.values())
