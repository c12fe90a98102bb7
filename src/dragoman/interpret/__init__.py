"""Looking inside: reading and replacing any quantity of the paper while a model runs."""
