"""The command line: one file a command, each with `add_parser(subparsers)` and `run(args)`.

Errors become one sentence on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""
