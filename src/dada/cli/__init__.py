"""The `dada` command."""

from dada.cli.app import app, main

__all__ = ["app", "main"]
