"""Models in Marian's own files: `.npz` and binary `.bin`, as Marian, Bergamot and Firefox Translations read them."""
