"""The theorems of the paper against the number of samples."""
