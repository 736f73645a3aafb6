"""What ``import lessvfl`` offers."""

from __future__ import annotations

import inspect

import lessvfl


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(lessvfl.__all__) == sorted(set(lessvfl.__all__))


def test_every_public_name_can_be_had() -> None:
    missing = [name for name in lessvfl.__all__ if not hasattr(lessvfl, name)]
    assert not missing


def test_every_public_function_and_class_says_what_it_is() -> None:
    public = [getattr(lessvfl, name) for name in lessvfl.__all__]
    mute = [
        value
        for value in public
        if (inspect.isclass(value) or inspect.isfunction(value))
        and not inspect.getdoc(value)
    ]
    assert not mute
