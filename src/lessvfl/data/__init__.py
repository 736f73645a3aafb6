"""Data sets: the registry and ``load``."""
