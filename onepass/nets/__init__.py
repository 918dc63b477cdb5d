"""Networks: a backbone that returns features, and the class head on top. Also initialisation,
optimisers, copies, gradients per sample, virtual steps and nearest-mean classifiers.

Modules here import `functional` and `base`. To add a network, write one file with `@network`, and
import it here.
"""

from onepass.nets.backbone import backbone, feature_count, preprocessing
from onepass.nets.batch_norm_modes import (
    explain_single_sample,
    freeze_untrained_norms,
    has_training_norms,
)
from onepass.nets.classifier import Classifier, Precision
from onepass.nets.fast import SideStream, compile_kernels, in_parallel
from onepass.nets.head import (
    FIRST_CAPACITY,
    CosineHead,
    Head,
    ScaledCosineHead,
    cosine_head,
)
from onepass.nets.initialise import build
from onepass.nets.mlp import MLP
from onepass.nets.nearest_mean import FeatureClassifier, NearestMean
from onepass.nets.pass_bytes import pass_bytes
from onepass.nets.per_sample_gradients import Gradients, gradients_per_batch
from onepass.nets.projection_head import project, projection_head
from onepass.nets.registry import NETWORKS, Network, network
from onepass.nets.resnet import ResNet18
from onepass.nets.tied_copies import recalibrated_copy, retie, tied_batch_norm_copy, tied_eval_copy
from onepass.nets.virtual_step import (
    add_gradients,
    logits_with,
    parameters_after_step,
    zero_frozen_rows,
)

__all__ = [
    "FIRST_CAPACITY",
    "MLP",
    "NETWORKS",
    "Classifier",
    "CosineHead",
    "FeatureClassifier",
    "Gradients",
    "Head",
    "NearestMean",
    "Network",
    "Precision",
    "ResNet18",
    "ScaledCosineHead",
    "SideStream",
    "add_gradients",
    "backbone",
    "build",
    "compile_kernels",
    "cosine_head",
    "explain_single_sample",
    "feature_count",
    "freeze_untrained_norms",
    "gradients_per_batch",
    "has_training_norms",
    "in_parallel",
    "logits_with",
    "network",
    "parameters_after_step",
    "pass_bytes",
    "preprocessing",
    "project",
    "projection_head",
    "recalibrated_copy",
    "retie",
    "tied_batch_norm_copy",
    "tied_eval_copy",
    "zero_frozen_rows",
]
