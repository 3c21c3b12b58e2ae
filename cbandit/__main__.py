"""``python -m cbandit``: the command line."""

from cbandit.cli import main

if __name__ == "__main__":
    main()
