"""`python -m drafthead` is the command line."""

from drafthead.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
