"""Models in the format of CTranslate2, as `dragoman export` and CTranslate2's converters write them."""
