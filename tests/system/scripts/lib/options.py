import dataclasses


@dataclasses.dataclass
class Options:
    arch: str
    width: int
    lr: float
    epochs: int
    seed: int = 5
    gamma: float = 2.0


def add_options(parser):
    parser.add_argument("--arch", default="mlp", choices=["mlp"])
    parser.add_argument("--width", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
