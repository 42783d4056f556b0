"""Three inputs and no target, a frozen backbone that stays in eval(), and layers whose weights are parametrized."""
import torch
from fabric_model import FabricModel
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)).requires_grad_(False)
        self.head, self.last = weight_norm(nn.Linear(8, 4)), spectral_norm(nn.Linear(4, 4))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, anchor, positive, negative):
        return tuple(self.last(torch.relu(self.head(self.backbone(x)))) for x in (anchor, positive, negative))


class Triplets(torch.utils.data.Dataset):
    def __len__(self):
        return 33

    def __getitem__(self, i):
        chance = torch.Generator().manual_seed(i)
        return tuple(torch.randn(6, generator=chance) for _ in range(3))


def margin(outputs):
    return nn.functional.triplet_margin_loss(*outputs)


torch.manual_seed(0)
model = Embedder()
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=1e-2)
FabricModel(model, lambda: (Triplets(), Triplets()), margin, optimizer).train(2, 8, 3)
changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
assert "head.parametrizations.weight.original0" in changed and "last.parametrizations.weight.0._u" in changed, changed
assert not any(name.startswith("backbone") for name in changed), changed
