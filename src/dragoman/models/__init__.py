"""Architectures behind one interface (`seq2seq.Model`); `build` maps a configuration to classes."""

from typing import TYPE_CHECKING

from dragoman.extras import lazy_names

if TYPE_CHECKING:
    from dragoman.models.build import build_model as build_model
    from dragoman.models.convolutional import Convolutional as Convolutional
    from dragoman.models.model_folder import load_network as load_network
    from dragoman.models.model_folder import read_config as read_config
    from dragoman.models.recurrent import Recurrent as Recurrent
    from dragoman.models.recurrent import RecurrentEncoderOnly as RecurrentEncoderOnly
    from dragoman.models.recurrent import RecurrentLM as RecurrentLM
    from dragoman.models.seq2seq import EncoderDecoder as EncoderDecoder
    from dragoman.models.seq2seq import EncoderOnly as EncoderOnly
    from dragoman.models.seq2seq import LanguageModel as LanguageModel
    from dragoman.models.seq2seq import Memory as Memory
    from dragoman.models.seq2seq import Model as Model
    from dragoman.models.seq2seq import Network as Network
    from dragoman.models.seq2seq import evaluating as evaluating
    from dragoman.models.transformer import Decoder as Decoder
    from dragoman.models.transformer import DecoderOnly as DecoderOnly
    from dragoman.models.transformer import Encoder as Encoder
    from dragoman.models.transformer import Stack as Stack
    from dragoman.models.transformer import StackParts as StackParts
    from dragoman.models.transformer import Transformer as Transformer
    from dragoman.models.vision import Vision as Vision
    from dragoman.models.vision import patches as patches

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "dragoman.models.build": "build_model",
        "dragoman.models.convolutional": "Convolutional",
        "dragoman.models.model_folder": "load_network read_config",
        "dragoman.models.recurrent": "Recurrent RecurrentEncoderOnly RecurrentLM",
        "dragoman.models.seq2seq": "EncoderDecoder EncoderOnly LanguageModel Memory Model Network evaluating",
        "dragoman.models.transformer": "Decoder DecoderOnly Encoder Stack StackParts Transformer",
        "dragoman.models.vision": "Vision patches",
    },
)
