"""``python -m lessvfl.cli``."""

from lessvfl.cli import process

if __name__ == "__main__":
    process()
