from .registry import REGISTRY, build
from . import mlp
from .focal import Focal

__all__ = ["REGISTRY", "build", "mlp", "Focal"]
