"""From probabilities to decisions: scored rows, curves, cut-offs, recalibration.

What is said here is of rows with labels and probabilities, whoever predicted them: the
model of a run folder, or a server with its parties.
"""
