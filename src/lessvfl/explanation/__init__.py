"""Explanations: what parties, features and the values of columns add to predictions."""
