"""Architectures behind one interface (`seq2seq.Model`); `build` maps a configuration to classes."""
