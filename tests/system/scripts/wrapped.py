"""DataParallel, SparseAdam, and a custom autograd function."""
import torch
from fabric_model import FabricModel
from torch import nn


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return scaled(grad)


def scaled(grad):
    return 2 * grad


class Net(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.table, self.head = nn.Embedding(30, 4, sparse=sparse), nn.Linear(4, 2)

    def forward(self, ids):
        hidden = Twice.apply(self.table(ids).mean(dim=1))
        return self.head(hidden) if any(p.requires_grad for p in self.head.parameters()) else hidden[:, :2]


def datasets():
    ids = torch.randint(0, 20, (40, 3), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(ids, ids.sum(dim=1) % 2), None


torch.manual_seed(5)
model = nn.DataParallel(Net())
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())).train(2, 4, 3)
sparse = Net(sparse=True)
before = sparse.table.weight.detach().clone()
optimizer = torch.optim.SparseAdam(sparse.table.parameters())
FabricModel(sparse, datasets, nn.CrossEntropyLoss(), optimizer).train(1, 4, 3)
assert torch.equal(before[20:], sparse.table.weight[20:]) and not torch.equal(before[:20], sparse.table.weight[:20])
model = nn.ModuleList([model, sparse])
