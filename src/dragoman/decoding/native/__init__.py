"""The decoding engine: packed weights, a native core, and the search of `dragoman.decoding` with the same results."""
