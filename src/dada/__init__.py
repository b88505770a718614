"""Personalized models learned by users who never share their data, over a graph they learn together."""

__version__ = "0.1.0"

__all__: list[str] = []
