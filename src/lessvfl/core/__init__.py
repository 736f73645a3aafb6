"""The mathematics of the method: torch alone, no files, no messages."""
