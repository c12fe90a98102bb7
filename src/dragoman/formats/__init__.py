"""Models in the formats of other programs, each with a report that both give the same numbers."""

from __future__ import annotations
