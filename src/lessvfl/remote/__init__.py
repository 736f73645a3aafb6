"""The same run between machines."""
