"""The pages of the benchmarks: results in, files out."""
