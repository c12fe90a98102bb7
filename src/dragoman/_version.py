"""The version of the package, importable without any of its modules."""

__version__ = "0.1.0"
