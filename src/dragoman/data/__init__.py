"""Text and images: reading, pairing, filtering, checking, tokenization and batching."""
