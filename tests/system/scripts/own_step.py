"""A step of one's own beside a metric of one's own: each has its name."""
import torch
from fabric_model import FabricModel
from torch import nn


def step(model, data, eva, train_loader, fn_args):
    outputs = model(data[0])
    loss = model.get_loss_function()(outputs, data[1])
    loss.backward()
    return eva(outputs, data[1]), loss


def spread(outputs, targets):
    return 100 + (outputs.max() - outputs.min())


class Logger:
    seen = 0

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        assert set(metrics) == {"loss", "accuracy"}, metrics

    def log_test_metrics(self, metrics, iteration, epoch):
        assert set(metrics) == {"loss", "spread"} and metrics["spread"] > 100, metrics
        self.seen += 1


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long())
    return data, data


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
logger = Logger()
FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, metrics=[spread], fn_step_train=step,
            driver_logger_callback=logger).train(2, 4, 3, validation_freq=1)
assert logger.seen == 2
