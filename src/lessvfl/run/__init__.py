"""One run, wherever it happens."""
