"""A web page on which models translate, a token at a time, and show where each token came from."""
