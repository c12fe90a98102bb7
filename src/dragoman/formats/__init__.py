"""Export of models to the formats of other programs, with a report that compares the results."""

from __future__ import annotations
