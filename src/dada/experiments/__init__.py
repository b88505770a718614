"""The tables and figures of the paper, each one command: choose settings, run, compare with what was published."""
