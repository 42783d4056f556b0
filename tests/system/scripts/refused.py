"""What is refused with what to write instead: in the driver, before an engine starts, or in the callback that does it."""
import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

rows = TensorDataset(torch.randn(40, 6), torch.randint(0, 2, (40,)))


def datasets():
    return rows, None


def step(model, data, eva, loader, args):
    other.zero_grad()
    other.step()
    return 0.0, 0.0


class Unfreeze(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        self.params["optimizer"].add_param_group({"params": [self.model.bias]})


torch.manual_seed(5)
model = nn.Linear(6, 2)
adam = torch.optim.Adam(model.parameters())
other = torch.optim.SGD(model.parameters(), lr=0.1)
lazy = nn.LazyLinear(2)
KINDS = [
    ("LBFGS", dict(optimizer=torch.optim.LBFGS(model.parameters())), ["LBFGS", "closure", "SGD"]),
    ("a lazy module", dict(model=lazy, optimizer=torch.optim.SGD(lazy.parameters(), lr=0.1)), ["LazyLinear", "call it once"]),
    ("one parameter, two optimizers", dict(optimizer=[adam, other]), ["in two optimizers"]),
    ("parameters that come later", dict(optimizer=torch.optim.NAdam([model.weight]), user_callback=Unfreeze()),
     ["Unfreeze.on_epoch_end()", "from the start"]),
    ("another optimizer in the step", dict(fn_step_train=step), ["another optimizer", "optimizer=["]),
]
for name, changed, words in KINDS:
    given = dict(model=model, datasets_function=datasets, loss_function=nn.CrossEntropyLoss(), optimizer=adam)
    given.update(changed)
    try:
        FabricModel(**given).train(1, 4, 3)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, "%s: %s is not in %r" % (name, missing, str(error))
    else:
        raise AssertionError("%s is not refused" % name)
FabricModel(model, datasets, nn.CrossEntropyLoss(), adam).train(1, 4, 3)  # what was refused is no call
