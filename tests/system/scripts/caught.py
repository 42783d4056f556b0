"""What engines raise is caught in the script, which goes on with another train()."""
import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, bad):
        self.x = torch.randn(60, 6, generator=torch.Generator().manual_seed(2))
        self.bad = bad

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index == self.bad:
            raise KeyError("row %d is damaged" % index)
        return self.x[index], int(self.x[index].sum() > 0)


torch.manual_seed(5)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    FabricModel(model, lambda: (Rows(17), None), nn.CrossEntropyLoss(), optimizer).train(2, 4, 3)
except RuntimeError as error:
    said = str(error)
    assert "KeyError: 'row 17 is damaged'" in said and "caught.py, line 18" in said, said
else:
    raise AssertionError("train() of damaged rows came back")
FabricModel(model, lambda: (Rows(None), None), nn.CrossEntropyLoss(), optimizer).train(2, 4, 3)
