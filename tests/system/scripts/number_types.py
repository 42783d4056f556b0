"""Parameters that are not float32."""
import torch
from fabric_model import FabricModel
from torch import nn

torch.manual_seed(5)
kept = []
for dtype in (torch.float64, torch.bfloat16, torch.float16):
    def datasets(dtype=dtype):
        x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
        return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    before = model[0].weight.detach().clone()
    FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(1, 4, 3)
    assert model[0].weight.dtype == dtype and not torch.equal(before, model[0].weight)
    kept.append(model)
model = nn.ModuleList(kept)
