import torch
from torch import nn


class Focal(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.gamma = options.gamma

    def forward(self, outputs, targets):
        taken = torch.log_softmax(outputs, dim=1).gather(1, targets[:, None])
        return -((1 - taken.exp()) ** self.gamma * taken).mean()
