"""A project of several files: packages beside the script with relative imports, a registry filled by decorators, and options."""
import argparse
import sys

import torch
from fabric_model import FabricModel
from lib import nets
from lib.nets import build
from lib.options import Options, add_options

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
add_options(parser)
args = parser.parse_args()
options = Options(**vars(args))
assert sys.argv[0].endswith("local_modules.py") and nets.REGISTRY


def datasets():
    x = torch.randn(40, options.width, generator=torch.Generator().manual_seed(options.seed))
    data = torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long())
    return data, data


torch.manual_seed(options.seed)
model = build(options.arch, options)
FabricModel(model, datasets, nets.Focal(options), torch.optim.SGD(model.parameters(), lr=options.lr)).train(args.epochs, 4, 3)
