"""Selection without a lambda: responses, moments, paths, shadows, pairs, curves."""
