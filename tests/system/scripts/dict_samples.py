"""Samples that are dicts, as Hugging Face has them; the network gives its loss."""
import torch
from fabric_model import FabricModel
from torch import nn


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.randint(0, 20, (count, 5), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(5), "labels": self.ids[i].sum() % 2, "idx": i}


class Output(dict):
    __getattr__ = dict.__getitem__


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = (self.embedding(input_ids) * attention_mask.unsqueeze(-1)).mean(dim=1)
        logits = self.head(hidden)
        return Output(loss=None if labels is None else nn.functional.cross_entropy(logits, labels), logits=logits)


def accuracy(outputs, labels):
    return (outputs.logits.argmax(dim=1) == labels).float().mean()


torch.manual_seed(5)
model = Classifier()
FabricModel(model, lambda: (Sentences(40), Sentences(10)), lambda outputs, labels: outputs.loss,
            torch.optim.AdamW(model.parameters()), metrics=[accuracy]).train(2, 4, 3)
