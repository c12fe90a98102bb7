"""`dragoman new`: write a configuration for a parallel text, based on the text, the machine and a budget."""
