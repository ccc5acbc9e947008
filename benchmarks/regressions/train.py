"""Trains the networks that the corpus has besides those of benchmarks/train.py, and writes them to models/.

    pip install torch==2.13.0 scikit-learn onnx onnxscript onnxruntime
    python -m benchmarks.regressions.train [mlp] [recognizer] ...

Needs some minutes on two cores. BatchNormalization is folded, as there.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from benchmarks.regressions import attention, data
from benchmarks.train import VALIDATION, ConvUnit, Head, fold

#: Network to learning rate and epochs.
SCHEDULES = {
    "mlp": (2e-3, 60),
    "mixer": (2e-3, 120),
    "tcn": (4e-3, 60),
    "unet": (4e-3, 60),
    "inception": (4e-3, 40),
    "detector": (4e-3, 60),
    "encoder": (1e-3, 150),
    "decoder": (3e-3, 40),
    "recognizer": (3e-3, 90),
    "swin": (2e-3, 100),
    "efficient": (4e-3, 40),
    "convnext": (2e-3, 40),
}
#: Names of the outputs of each network.
OUTPUTS = {"unet": ["clean"], "detector": ["class", "box", "heat"]}
_TOKENS = 16


def mlp() -> nn.Module:
    """Four linear layers."""
    widths = [64, 96, 96, 64]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


class MixerBlock(nn.Module):
    """Mixes tokens, then channels (Tolstikhin and others, 2021)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token1, self.token2 = nn.Linear(_TOKENS, 24), nn.Linear(24, _TOKENS)
        self.channel1, self.channel2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on [n, tokens, width]."""
        y = self.norm1(x).transpose(1, 2)
        x = x + self.token2(nn.functional.gelu(self.token1(y))).transpose(1, 2)
        return x + self.channel2(nn.functional.gelu(self.channel1(self.norm2(x))))


class Mixer(nn.Module):
    """2x2 patches, three mixer blocks, mean over the patches, linear layer."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.blocks = nn.Sequential(*[MixerBlock(width) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        x = self.patches(x).reshape(-1, self.head.in_features, _TOKENS).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class TemporalBlock(nn.Module):
    """Two dilated convolutions over time beside an identity."""

    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.first = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv1d(width, width, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return self.relu(x + self.second(self.relu(self.first(x))))


def tcn() -> nn.Module:
    """A temporal convolutional network over the rows of an image."""
    blocks = [TemporalBlock(24, d) for d in (1, 2, 4)]
    head = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 10)]
    return nn.Sequential(nn.Conv1d(8, 24, 3, padding=1), nn.ReLU(), *blocks, *head)


class UNet(nn.Module):
    """Two levels down and up, joined by Concat; the clean image comes out."""

    def __init__(self):
        super().__init__()
        self.down0, self.down1, self.down2 = ConvUnit(1, 16), ConvUnit(16, 32), ConvUnit(32, 48)
        self.pool = nn.MaxPool2d(2)
        self.up1, self.up0 = nn.ConvTranspose2d(48, 32, 2, stride=2), nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.join1, self.join0 = ConvUnit(64, 32), ConvUnit(32, 16)
        self.last = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        fine = self.down0(x)
        middle = self.down1(self.pool(fine))
        coarse = self.down2(self.pool(middle))
        y = self.join1(torch.cat([torch.relu(self.up1(coarse)), middle], 1))
        y = self.join0(torch.cat([torch.relu(self.up0(y)), fine], 1))
        return self.last(y)


class InceptionBlock(nn.Module):
    """1x1, 3x3, 3x3 twice and a pooled branch, joined by Concat."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.one = ConvUnit(inputs, width, 1)
        self.three = nn.Sequential(ConvUnit(inputs, width, 1), ConvUnit(width, width))
        self.five = nn.Sequential(ConvUnit(inputs, width, 1), ConvUnit(width, width), ConvUnit(width, width))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvUnit(inputs, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


def inception() -> nn.Module:
    """Stem, two inception blocks with a strided convolution between them, linear layer."""
    between = ConvUnit(32, 32, stride=2)
    return nn.Sequential(ConvUnit(3, 16), InceptionBlock(16, 8), between, InceptionBlock(32, 12), Head(48))


class Detector(nn.Module):
    """A backbone to a grid of 4x4, and three heads: class, box (row, column, 0 to 1) and a heat map."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            ConvUnit(3, 16), ConvUnit(16, 24, stride=2), ConvUnit(24, 32), ConvUnit(32, 48, stride=2)
        )
        self.classes = nn.Sequential(ConvUnit(48, 48), Head(48))
        self.boxes = nn.Sequential(ConvUnit(48, 16), nn.Flatten(), nn.Linear(256, 2))
        self.heat = nn.Sequential(ConvUnit(48, 16), nn.Conv2d(16, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the network."""
        x = self.backbone(x)
        return self.classes(x), self.boxes(x), self.heat(x)


NETWORKS = {
    "mlp": mlp,
    "mixer": Mixer,
    "tcn": tcn,
    "unet": UNet,
    "inception": inception,
    "detector": Detector,
    **attention.NETWORKS,
}


def loss(
    name: str, outputs: Tensor | tuple[Tensor, ...], images: np.ndarray, truth: Tensor, seed: int
) -> Tensor:
    """What training makes small."""
    if name == "unet":
        return nn.functional.mse_loss(outputs, torch.from_numpy(data.gray(images)))
    if name == "recognizer":
        return attention.line_loss(outputs, truth[torch.from_numpy(data.lined(len(images), seed))])
    if name == "decoder":
        return attention.next_loss(outputs, torch.from_numpy(data.words(images)))
    if name != "detector":
        return nn.functional.cross_entropy(outputs, truth, label_smoothing=0.05)
    classes, box, heat = outputs
    place = data.corners(len(images), seed)
    centre = (place + 4) // 4
    wanted = np.zeros((len(images), 4, 4), np.float32)
    wanted[np.arange(len(images)), centre[:, 0].clip(0, 3), centre[:, 1].clip(0, 3)] = 1
    return (
        nn.functional.cross_entropy(classes, truth, label_smoothing=0.05)
        + 5 * nn.functional.mse_loss(box, torch.from_numpy(place.astype(np.float32) / 8))
        + nn.functional.binary_cross_entropy_with_logits(heat[:, 0], torch.from_numpy(wanted))
    )


def train(name: str, images: np.ndarray, truth: np.ndarray) -> nn.Module:
    """Fit with AdamW and one learning-rate cycle; noise, colours and places are drawn anew in each step."""
    rate, epochs = SCHEDULES[name]
    model, batch = NETWORKS[name]().train(), 64
    steps = len(images) // batch
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs=epochs, steps_per_epoch=steps)
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        for step, chosen in enumerate(np.array_split(rng.permutation(len(images)), steps)):
            seed = 1000 + epoch * steps + step
            image = np.roll(images[chosen], tuple(rng.integers(-1, 2, 2)), (2, 3))
            optimizer.zero_grad()
            outputs = model(torch.from_numpy(data.INPUTS[name](image, seed)))
            loss(name, outputs, image, torch.from_numpy(truth[chosen]), seed).backward()
            optimizer.step()
            cycle.step()
    return fold(model.eval())


def export(name: str, model: nn.Module, path: Path) -> None:
    """Write ONNX with a free batch dimension; nodes bear the names of their modules."""
    outputs = OUTPUTS.get(name, ["logits"])
    ((given, array),) = data.samples(name, "validation", 2).items()
    torch.onnx.export(
        model,
        (torch.from_numpy(array),),
        path,
        opset_version=17,
        input_names=[given],
        output_names=outputs,
        dynamic_axes={tensor: {0: "batch"} for tensor in (given, *outputs)},
        dynamo=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def main(names: list[str]) -> None:
    """Train the networks of these names, print how good they are on held-out images, and write them."""
    digits = load_digits()
    images, truth = digits.images.astype(np.uint8)[:, None], digits.target
    images, _, truth, _ = train_test_split(
        images, truth, test_size=VALIDATION, stratify=truth, random_state=0
    )
    held, right = data.pixels("validation"), torch.from_numpy(data.labels().astype(np.int64))
    for name in names:
        torch.manual_seed(0)
        model = train(name, images, truth)
        with torch.no_grad():
            (array,) = data.samples(name, "validation", len(held)).values()
            outputs = model(torch.from_numpy(array))
            found = outputs[0] if isinstance(outputs, tuple) else outputs
            score = loss(name, outputs, held, right, 2)
        one = found.ndim == 2
        top1 = (found.argmax(1) == right).float().mean() if one else torch.nan
        export(name, model, data.MODELS / f"{name}.onnx")
        print(
            f"{name}: top-1 {float(top1):.4f}, loss {float(score):.4f} on {len(held)} held-out images",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCHEDULES))
