"""``python -m lessvfl.cli``."""

from lessvfl.cli.app import main

if __name__ == "__main__":
    main()
