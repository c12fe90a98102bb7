"""The decoding engine: packed weights, a native core, and the search of `dragoman.search` with the same results."""
