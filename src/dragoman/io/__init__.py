"""Files on disk: small ones read safely, large ones read at any offset, all written atomically."""
