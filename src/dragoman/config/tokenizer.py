"""`[tokenizer]`: the segmentation into tokens."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dragoman.config import limits
from dragoman.config.section import Section


class SideTokenizerConfig(Section):
    """A sentencepiece model, or single characters (kind `char`, without normalization)."""

    kind: Literal["bpe", "unigram", "char"] = Field(
        "bpe",
        description="byte-pair encoding (Sennrich et al. 2016), unigram language model (Kudo 2018), or characters",
        examples=["unigram"],
    )
    vocab_size: limits.VocabularySize = Field(
        8000,
        description="vocabulary size, including 4 special tokens; for characters, a maximum",
        examples=[16_000],
    )
    byte_fallback: bool = Field(
        True, description="encode unknown characters as UTF-8 bytes instead of `<unk>`", examples=[False]
    )
    normalization: Literal["nmt_nfkc", "nfkc", "identity"] = Field(
        "nmt_nfkc",
        description="normalization of sentencepiece; nfkc and nmt_nfkc replace `…` by `...` and `？` by `?`",
        examples=["identity"],
    )
    character_coverage: limits.Coverage = Field(
        1.0, description="fraction of the characters of the training text that the vocabulary covers", examples=[0.9995]
    )
    sampling: limits.Dropout = Field(
        0.0,
        description="subword regularization in training: rate of BPE-dropout (Provilkov et al. 2020), or smoothing "
        "exponent of the unigram model (Kudo 2018); 0 = none",
        examples=[0.1],
    )
    sentences: limits.Sentences = Field(
        2_000_000, description="maximum number of lines from which the vocabulary is learned", examples=[500_000]
    )

    @model_serializer(mode="wrap")
    def _effective(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the normalization of characters, so that a written document is accepted again."""
        document: dict[str, Any] = serialize(self)
        if self.kind == "char":
            document.pop("normalization", None)
        return document


class TokenizerConfig(SideTokenizerConfig):
    """The tokenizer of both sides, or of the source if `target` is set."""

    shared: bool = Field(True, description="use one vocabulary for both sides", examples=[False])
    corpora: limits.Corpora | None = Field(
        None,
        description="learn from the first corpora of `data.train` only, so that corpora added later do not change the "
        "vocabulary, and prepared data are kept",
        examples=[1],
    )
    add_words: tuple[str, ...] = Field(
        (),
        description="words that become single tokens in addition to the tokens of the model in `train.init_from`",
        examples=[["Dragoman"]],
    )
    target: SideTokenizerConfig | None = Field(
        None,
        description="settings of the target, if they differ; requires `shared = false`",
        examples=[{"kind": "char"}],
    )

    @model_validator(mode="after")
    def _one_tokenizer_per_side(self) -> TokenizerConfig:
        if self.target is not None and self.shared:
            raise ValueError(
                "tokenizer.target requires separate vocabularies, but shared is true; set tokenizer.shared = false, "
                "or remove tokenizer.target"
            )
        return self

    @property
    def sides(self) -> tuple[SideTokenizerConfig, SideTokenizerConfig]:
        """The settings of the source and of the target."""
        return self, self.target or self
