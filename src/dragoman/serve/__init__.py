"""The translation server: LibreTranslate's and DeepL's interfaces, the page that translates, and the viewer."""
