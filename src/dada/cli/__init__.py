"""The `dada` command; its tree of commands is in `dada.cli.app`."""
