"""The benchmarks: the paper's tables and figures, its theory, and its peers."""
