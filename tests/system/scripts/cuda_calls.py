"""Hard .cuda() calls, as scripts for GPU hosts have them."""
import torch
from fabric_model import FabricModel
from torch import nn

device = torch.device("cuda")
torch.backends.cudnn.benchmark = True
torch.cuda.manual_seed_all(3)
torch.cuda.set_device(0)
weight = torch.ones(2, device="cuda")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, x):
        return self.inner(x.cuda(non_blocking=True)) + torch.zeros(2, device=device) * weight.to(device)


def step(model, data, eva, loader, args):
    x, y = data[0].to(device), data[1].to("cuda:0", non_blocking=True)
    model.get_optimizer().zero_grad()
    out = model(x)
    loss = model.get_loss_function()(out, y)
    loss.backward()
    return eva(out, y), loss


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).cuda()
    return torch.utils.data.TensorDataset(x.cpu(), (x.sum(dim=1) > 0).long().cpu()), None


torch.manual_seed(5)
model = Net().cuda()
model = model.to(device)
criterion = nn.CrossEntropyLoss().cuda()
FabricModel(model, datasets, criterion, torch.optim.Adam(model.parameters()), fn_step_train=step).train(1, 4, 3)
