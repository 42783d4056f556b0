"""A Trainer as those of the large libraries: arguments in a dataclass, a collator that pads, dicts everywhere, metrics by a method."""
import dataclasses
import random

import torch
from fabric_model import FabricModel
from torch import nn


@dataclasses.dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 4
    num_train_epochs: int = 2
    learning_rate: float = 3e-3
    weight_decay: float = 0.01


@dataclasses.dataclass
class DataCollatorWithPadding:
    pad_token_id: int = 0

    def __call__(self, features):
        longest = max(len(one["input_ids"]) for one in features)
        rows = [one["input_ids"] + [self.pad_token_id] * (longest - len(one["input_ids"])) for one in features]
        ids = torch.tensor(rows)
        return {"input_ids": ids, "attention_mask": (ids != self.pad_token_id).long(), "labels": torch.tensor([one["label"] for one in features])}


@dataclasses.dataclass
class SequenceClassifierOutput:
    loss: torch.Tensor = None
    logits: torch.Tensor = None


class Classifier(nn.Module):
    def __init__(self, words=30, width=8):
        super().__init__()
        self.embeddings, self.encoder = nn.Embedding(words, width, padding_idx=0), nn.GRU(width, width, batch_first=True)
        self.classifier, self.dropout = nn.Linear(width, 2), nn.Dropout(0.1)

    def forward(self, input_ids=None, attention_mask=None, labels=None, **unused):
        states, _ = self.encoder(self.embeddings(input_ids))
        lengths = attention_mask.sum(dim=1) - 1
        logits = self.classifier(self.dropout(states[torch.arange(len(lengths)), lengths]))
        return SequenceClassifierOutput(None if labels is None else nn.functional.cross_entropy(logits, labels), logits)


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset, data_collator, compute_metrics):
        self.model, self.args, self.train_dataset, self.eval_dataset = model, args, train_dataset, eval_dataset
        self.data_collator, self.compute_metrics = data_collator, compute_metrics
        self.state = {"log_history": []}

    def datasets(self):
        return self.train_dataset, self.eval_dataset

    def compute_loss(self, outputs, labels):
        return outputs.loss

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.state["log_history"].append(dict(metrics, epoch=epoch))

    def train(self):
        no_decay = ["bias"]
        groups = [{"params": [p for n, p in self.model.named_parameters() if not any(nd in n for nd in no_decay)],
                   "weight_decay": self.args.weight_decay},
                  {"params": [p for n, p in self.model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate)
        fabric = FabricModel(self.model, self.datasets, self.compute_loss, optimizer, metrics=[self.compute_metrics],
                             driver_logger_callback=self, fn_batch_collate=self.data_collator)
        fabric.train(self.args.num_train_epochs, self.args.per_device_train_batch_size, 3)


def accuracy(outputs, labels):
    return (outputs.logits.argmax(-1) == labels).float().mean().item()


rng = random.Random(4)
rows = [[rng.randrange(1, 30) for _ in range(rng.randrange(2, 9))] for _ in range(50)]
encoded = [{"input_ids": row, "label": sum(row) % 2, "text": "never used"} for row in rows]
torch.manual_seed(5)
model = Classifier()
trainer = Trainer(model, TrainingArguments(), encoded[:40], encoded[40:], DataCollatorWithPadding(), accuracy)
trainer.train()
assert len(trainer.state["log_history"]) == 20, len(trainer.state["log_history"])
