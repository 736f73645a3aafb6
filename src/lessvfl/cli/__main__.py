"""``python -m lessvfl.cli``."""

from lessvfl.cli.app import main

main()
