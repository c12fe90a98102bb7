"""The native engine: packed weights, and a C++ core that gives the results of `dragoman.decoding` on x86-64 CPUs."""
