"""Bulk translation of folders of text and Parquet files; an interrupted job resumes when it is started again.

Each input file is a shard and produces one output file of the same name.  Shards are processed in chunks; finished
chunks are kept on disk until their shard is complete.  A chunk is translated independently of all others, so that its
bytes depend only on the model, the settings and its lines, not on the worker or on interruptions.
"""

from dragoman.bulk.run import Summary, translate_bulk
from dragoman.bulk.work import Job

__all__ = ["Job", "Summary", "translate_bulk"]
