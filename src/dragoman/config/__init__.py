"""The configuration: one TOML document, read into frozen pydantic models.

document.py   the whole document: reading, overrides, train.init_from, validation, writing
data.py       [data] and [tokenizer]; paths of the document; what follows from the kind of data
model.py      [model]
positions.py  [model.position]
train.py      [train] and [search]
server.py     the document of `dragoman serve`
section.py    the base class of sections
limits.py     ranges of numbers
errors.py     messages of validation errors
reference.py  descriptions of all keys, read from the models
"""

from dragoman.config.data import AugmentConfig as AugmentConfig
from dragoman.config.data import CorpusConfig as CorpusConfig
from dragoman.config.data import DialogueData as DialogueData
from dragoman.config.data import FilterConfig as FilterConfig
from dragoman.config.data import ImageData as ImageData
from dragoman.config.data import LabelledData as LabelledData
from dragoman.config.data import MaskedData as MaskedData
from dragoman.config.data import ParallelData as ParallelData
from dragoman.config.data import PixelConfig as PixelConfig
from dragoman.config.data import PromptConfig as PromptConfig
from dragoman.config.data import SideTokenizerConfig as SideTokenizerConfig
from dragoman.config.data import TaggedData as TaggedData
from dragoman.config.data import TextData as TextData
from dragoman.config.data import TokenizerConfig as TokenizerConfig
from dragoman.config.data import TreeData as TreeData
from dragoman.config.data import move_root as move_root
from dragoman.config.data import resolve_path as resolve_path
from dragoman.config.document import Config as Config
from dragoman.config.document import dump_toml as dump_toml
from dragoman.config.document import flatten as flatten
from dragoman.config.document import load_config as load_config
from dragoman.config.document import parse_config as parse_config
from dragoman.config.document import read_document as read_document
from dragoman.config.model import PRESETS as PRESETS
from dragoman.config.model import BahdanauAttention as BahdanauAttention
from dragoman.config.model import BatchNormConfig as BatchNormConfig
from dragoman.config.model import BlockConfig as BlockConfig
from dragoman.config.model import ConvolutionalConfig as ConvolutionalConfig
from dragoman.config.model import DecoderOnlyConfig as DecoderOnlyConfig
from dragoman.config.model import EncoderOnlyConfig as EncoderOnlyConfig
from dragoman.config.model import GRUCell as GRUCell
from dragoman.config.model import GRUConfig as GRUConfig
from dragoman.config.model import LayerNormConfig as LayerNormConfig
from dragoman.config.model import LearnedState as LearnedState
from dragoman.config.model import LinearAttention as LinearAttention
from dragoman.config.model import LSTMCell as LSTMCell
from dragoman.config.model import LSTMConfig as LSTMConfig
from dragoman.config.model import LuongAttention as LuongAttention
from dragoman.config.model import ModelConfig as ModelConfig
from dragoman.config.model import NoAttention as NoAttention
from dragoman.config.model import QKNormAttention as QKNormAttention
from dragoman.config.model import RecurrentCell as RecurrentCell
from dragoman.config.model import RecurrentConfig as RecurrentConfig
from dragoman.config.model import RecurrentEncoderConfig as RecurrentEncoderConfig
from dragoman.config.model import RecurrentLMConfig as RecurrentLMConfig
from dragoman.config.model import RMSNormConfig as RMSNormConfig
from dragoman.config.model import RNNCell as RNNCell
from dragoman.config.model import RNNConfig as RNNConfig
from dragoman.config.model import SoftmaxAttention as SoftmaxAttention
from dragoman.config.model import TransformerConfig as TransformerConfig
from dragoman.config.model import VisionConfig as VisionConfig
from dragoman.config.model import ZeroState as ZeroState
from dragoman.config.positions import AlibiPosition as AlibiPosition
from dragoman.config.positions import LearnedPosition as LearnedPosition
from dragoman.config.positions import LinearScaling as LinearScaling
from dragoman.config.positions import Llama3Scaling as Llama3Scaling
from dragoman.config.positions import NoPosition as NoPosition
from dragoman.config.positions import NoScaling as NoScaling
from dragoman.config.positions import OtherPosition as OtherPosition
from dragoman.config.positions import Position as Position
from dragoman.config.positions import RecurrentPosition as RecurrentPosition
from dragoman.config.positions import RotaryByLayerPosition as RotaryByLayerPosition
from dragoman.config.positions import RotaryPosition as RotaryPosition
from dragoman.config.positions import ShawPosition as ShawPosition
from dragoman.config.positions import SinusoidalPosition as SinusoidalPosition
from dragoman.config.positions import T5Position as T5Position
from dragoman.config.section import Duration as Duration
from dragoman.config.section import Share as Share
from dragoman.config.train import AdamConfig as AdamConfig
from dragoman.config.train import AdamWConfig as AdamWConfig
from dragoman.config.train import BudgetSchedule as BudgetSchedule
from dragoman.config.train import ConstantSchedule as ConstantSchedule
from dragoman.config.train import CosineSchedule as CosineSchedule
from dragoman.config.train import FSDPConfig as FSDPConfig
from dragoman.config.train import InverseSqrtSchedule as InverseSqrtSchedule
from dragoman.config.train import LinearSchedule as LinearSchedule
from dragoman.config.train import LoRAConfig as LoRAConfig
from dragoman.config.train import MuonConfig as MuonConfig
from dragoman.config.train import Optimizer as Optimizer
from dragoman.config.train import RegularizerConfig as RegularizerConfig
from dragoman.config.train import ReplicatedConfig as ReplicatedConfig
from dragoman.config.train import Schedule as Schedule
from dragoman.config.train import SearchConfig as SearchConfig
from dragoman.config.train import SGDConfig as SGDConfig
from dragoman.config.train import TrainConfig as TrainConfig
from dragoman.config.train import WarmupStableDecaySchedule as WarmupStableDecaySchedule
