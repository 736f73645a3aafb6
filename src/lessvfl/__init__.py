"""Embedded feature selection across parties: LESS-VFL and its baselines."""

__version__ = "0.1.0"
