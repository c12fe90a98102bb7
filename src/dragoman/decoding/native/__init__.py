"""The native engine: packed weights, and a C++ core with the results of `dragoman.decoding`, on x86-64 and ARM64."""
