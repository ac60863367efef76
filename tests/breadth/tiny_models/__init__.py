"""Tiny models of many kinds, each with a configuration small enough to run for real in a fraction of a second."""

from .expert_models import EXPERTS
from .model_case import TinyModel
from .multimodal_models import MULTIMODAL
from .recurrent_models import RECURRENT
from .signal_models import AUDIO, TIME_SERIES
from .text_models import DECODERS, ENCODER_DECODERS, ENCODERS
from .vision_models import DENSE_PREDICTION, DETECTION, IMAGES

TINY_MODELS: tuple[TinyModel, ...] = (
    *DECODERS,
    *ENCODERS,
    *ENCODER_DECODERS,
    *EXPERTS,
    *RECURRENT,
    *IMAGES,
    *DETECTION,
    *DENSE_PREDICTION,
    *MULTIMODAL,
    *AUDIO,
    *TIME_SERIES,
)
