"""Networks: a backbone that gives features, the head on top, and the optimisers that train them.
Modules here import `functional` and `base`; a network of your own is one file with `@network` and
one line here."""

from onepass.nets.backbone import backbone, feature_count, preprocessing
from onepass.nets.classifier import Classifier, Precision
from onepass.nets.fast import Aside, at_once, compile_kernels
from onepass.nets.head import (
    FIRST_CAPACITY,
    CosineHead,
    Head,
    ScaledCosineHead,
    cosine_head,
)
from onepass.nets.initialise import build
from onepass.nets.mlp import MLP
from onepass.nets.nearest_mean import ByFeatures, NearestMean
from onepass.nets.norms import normalises, settle, tell_of_lone_sample
from onepass.nets.per_sample import Gradients, batch_gradients
from onepass.nets.projection import projected, projection
from onepass.nets.registry import NETWORKS, Network, network
from onepass.nets.resnet import ResNet18
from onepass.nets.twin import evaluating, normalising, refresh, renormalised
from onepass.nets.virtual import after_step, combined, logits_with, of_free_rows

__all__ = [
    "FIRST_CAPACITY",
    "MLP",
    "NETWORKS",
    "Aside",
    "ByFeatures",
    "Classifier",
    "CosineHead",
    "Gradients",
    "Head",
    "NearestMean",
    "Network",
    "Precision",
    "ResNet18",
    "ScaledCosineHead",
    "after_step",
    "at_once",
    "backbone",
    "batch_gradients",
    "build",
    "combined",
    "compile_kernels",
    "cosine_head",
    "evaluating",
    "feature_count",
    "logits_with",
    "network",
    "normalises",
    "normalising",
    "of_free_rows",
    "preprocessing",
    "projected",
    "projection",
    "refresh",
    "renormalised",
    "settle",
    "tell_of_lone_sample",
]
