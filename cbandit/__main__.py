"""``python -m cbandit``."""

from cbandit.cli import main

main()
