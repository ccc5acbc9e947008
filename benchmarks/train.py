"""Trains the four small networks of the suite on scikit-learn's digits and writes them to models/.

    pip install torch==2.13.0 scikit-learn onnx onnxscript onnxruntime
    python -m benchmarks.train [cnn] [resnet] [mobilenet] [vit]

Needs some minutes on two cores. BatchNormalization is folded into the convolution before it, and every
activation between convolutions is a ReLU, so that channels can be rescaled without changing the function.
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
from torch.nn.utils.fusion import fuse_conv_bn_eval

MODELS = Path(__file__).parent / "models"
#: Network to learning rate and epochs.
SCHEDULES = {"cnn": (4e-3, 60), "resnet": (4e-3, 60), "mobilenet": (4e-3, 60), "vit": (2e-3, 240)}
CALIBRATION, VALIDATION = 128, 528
#: Patches of the vision transformer.
TOKENS = 16


class ConvUnit(nn.Sequential):
    """Conv, BatchNorm, and a ReLU unless it is left out."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, *, relu: bool = True, **options: int):
        padding = kernel // 2
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False, **options)
        self.bn = nn.BatchNorm2d(outputs)
        if relu:
            self.relu = nn.ReLU()


class Head(nn.Sequential):
    """Mean over the image, then a linear layer."""

    def __init__(self, channels: int):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def cnn() -> nn.Module:
    """Ten convolutions in a row and a linear layer."""
    widths = [1, 16, 16, 16, 24, 24, 24, 24, 32, 32, 32]
    strides = {3: 2, 7: 2}
    units = [ConvUnit(a, b, stride=strides.get(i, 1)) for i, (a, b) in enumerate(pairwise(widths))]
    return nn.Sequential(*units, Head(32))


class Residual(nn.Module):
    """Two 3x3 convolutions beside an identity, or a strided 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.first = ConvUnit(inputs, outputs, stride=stride)
        self.second = ConvUnit(outputs, outputs, relu=False)
        self.short = ConvUnit(inputs, outputs, 1, relu=False, stride=stride) if stride > 1 else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return self.relu(self.second(self.first(x)) + self.short(x))


def resnet() -> nn.Module:
    """Stem, three residual blocks, linear layer: 9 weighted layers and 3 Adds."""
    return nn.Sequential(ConvUnit(1, 20), Residual(20, 20), Residual(20, 32, 2), Residual(32, 32), Head(32))


class Inverted(nn.Module):
    """1x1 expansion, depthwise 3x3, 1x1 projection; an identity beside them where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        wide = 3 * inputs
        self.expand = ConvUnit(inputs, wide, 1)
        self.depthwise = ConvUnit(wide, wide, stride=stride, groups=wide)
        self.project = ConvUnit(wide, outputs, 1, relu=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def mobilenet() -> nn.Module:
    """Stem, six inverted residuals, 1x1 convolution, linear layer."""
    shapes = [(16, 16, 1), (16, 20, 1), (20, 20, 1), (20, 24, 2), (24, 28, 1), (28, 32, 1)]
    return nn.Sequential(ConvUnit(1, 16), *[Inverted(*s) for s in shapes], ConvUnit(32, 64, 1), Head(64))


class Block(nn.Module):
    """Pre-norm transformer block with separate query, key and value."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y = self.norm1(x)
        query, key, value = (
            f(y).reshape(-1, TOKENS, self.heads, self.width // self.heads).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(-1, -2) * (self.width // self.heads) ** -0.5, -1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(-1, TOKENS, self.width))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """2x2 patches of the image, three blocks, mean over the patches, linear layer."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, TOKENS, width))
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(3)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        x = self.patches(x).reshape(-1, self.head.in_features, TOKENS).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


def train(model: nn.Module, images: Tensor, labels: Tensor, rate: float, epochs: int) -> nn.Module:
    """Fit with AdamW and one learning-rate cycle."""
    data = torch.utils.data.TensorDataset(images, labels)
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.train().parameters(), weight_decay=0.05)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs=epochs, steps_per_epoch=len(batches))
    for _ in range(epochs):
        for image, label in batches:
            shift = torch.randint(-1, 2, (2,)).tolist()
            optimizer.zero_grad()
            logits = model(torch.roll(image, shift, (2, 3)))
            nn.functional.cross_entropy(logits, label, label_smoothing=0.05).backward()
            optimizer.step()
            cycle.step()
    return model.eval()


def fold(model: nn.Module) -> nn.Module:
    """Fold every BatchNorm into the convolution before it."""
    for unit in model.modules():
        if isinstance(unit, ConvUnit):
            unit.conv, unit.bn = fuse_conv_bn_eval(unit.conv, unit.bn), nn.Identity()
    return model


def export(model: nn.Module, path: Path) -> None:
    """Write ONNX with a free batch dimension; nodes bear the names of their modules."""
    torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        path,
        opset_version=17,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        dynamo=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def main(names: list[str]) -> None:
    """Train the networks of these names, print their accuracy, and write them with the data."""
    digits = load_digits()
    pixels, labels = digits.images.astype(np.uint8)[:, None], digits.target
    pixels, held, labels, truth = train_test_split(
        pixels, labels, test_size=VALIDATION, stratify=labels, random_state=0
    )
    MODELS.mkdir(exist_ok=True)
    np.savez_compressed(
        MODELS / "digits.npz", calibration=pixels[:CALIBRATION], validation=held, labels=truth.astype(np.int8)
    )
    images, held = (torch.from_numpy(a.astype(np.float32) / 16) for a in (pixels, held))
    for name in names:
        torch.manual_seed(0)
        network = {"cnn": cnn, "resnet": resnet, "mobilenet": mobilenet, "vit": ViT}[name]()
        model = fold(train(network, images, torch.from_numpy(labels), *SCHEDULES[name]))
        with torch.no_grad():
            right = (model(held).argmax(1).numpy() == truth).mean()
        export(model, MODELS / f"{name}.onnx")
        print(f"{name}: {right:.4f} of {len(truth)} held-out images right")


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCHEDULES))
