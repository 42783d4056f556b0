from torch import nn

from ..options import Options
from .registry import register


@register("mlp")
class Mlp(nn.Sequential):
    def __init__(self, options: Options):
        super().__init__(nn.Linear(options.width, 8), nn.GELU(), nn.Linear(8, 2))
        self.options = options
