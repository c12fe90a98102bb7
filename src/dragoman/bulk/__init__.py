"""Folders of text and Parquet, shard by shard: killed at any moment and run again, a job goes on where it was.

A shard is one input file, and becomes one output file of the same name.  It is done in chunks of so many lines; what is
finished of it lies on disk until the whole shard is there.  A chunk is translated for itself, so that its bytes follow
from the model, the settings and its lines alone: not from who did it, when, or after how many kills.
"""

from __future__ import annotations

from dragoman.bulk.run import Summary, translate_bulk
from dragoman.bulk.shards import is_bulk
from dragoman.bulk.work import Job, form_of, rendered

__all__ = ["Job", "Summary", "form_of", "is_bulk", "rendered", "translate_bulk"]
