"""A web page that shows translations token by token, each with its attention to the source."""
