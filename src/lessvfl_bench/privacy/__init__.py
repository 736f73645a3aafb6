"""What the sides of a run learn from each other's messages, measured by attacks."""
