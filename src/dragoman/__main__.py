"""`python -m dragoman`: the command line without its script on the search path."""

from dragoman.cli import main

main()
