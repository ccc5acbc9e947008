"""Trains a small network on 8x8 digits and writes every file that the specs here read.

pip install torch scikit-learn onnx onnxruntime
python train.py
"""

import json
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

HERE = Path(__file__).parent
EPOCHS = 60
CALIBRATION_IMAGES = 200
VALIDATION_IMAGES = 360

# What a colleague read off histograms: +-10 covers most layers, +-50 the ones that looked busier.
USUAL_RANGE, BUSY_RANGE = 10.0, 50.0
BUSY = ("/stem/", "/down/pointwise/", "/down/relu2/")


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()

    def forward(self, x):
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + x)


class Branches(nn.Module):
    """A 1x1 and a 3x3 convolution side by side, concatenated."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.narrow = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.narrow_bn = nn.BatchNorm2d(outputs // 2)
        self.wide = nn.Conv2d(inputs, outputs // 2, 3, padding=1, bias=False)
        self.wide_bn = nn.BatchNorm2d(outputs // 2)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(torch.cat([self.narrow_bn(self.narrow(x)), self.wide_bn(self.wide(x))], dim=1))


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(1, 16, 3, padding=1, bias=False), bn=nn.BatchNorm2d(16), relu=nn.ReLU()
            )
        )
        self.block1 = Residual(16)
        self.down = nn.Sequential(
            OrderedDict(
                depthwise=nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16, bias=False),
                bn1=nn.BatchNorm2d(16),
                relu1=nn.ReLU(),
                pointwise=nn.Conv2d(16, 32, 1, bias=False),
                bn2=nn.BatchNorm2d(32),
                relu2=nn.ReLU(),
            )
        )
        self.block2 = Residual(32)
        self.branches = Branches(32, 32)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        x = self.branches(self.block2(self.down(self.block1(self.stem(image)))))
        return self.head(self.flatten(self.pool(x)))


def split():
    """Returns training and validation images, float32 (N, 1, 8, 8) in [0, 1], and their labels."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    return train_test_split(images, labels, test_size=VALIDATION_IMAGES, stratify=labels, random_state=0)


def train(images, labels):
    images, labels = torch.from_numpy(images), torch.from_numpy(labels)
    model = Digits().train()
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels), batch_size=64, shuffle=True, drop_last=True
    )
    # Chosen so that activations stay near 1, where ranges set by hand really hurt; accuracy hardly notices.
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.25)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, epochs=EPOCHS, steps_per_epoch=len(batches)
    )
    for _ in range(EPOCHS):
        for image, label in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(image), label, label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def fold_batchnorm(model):
    """Folds each BatchNorm into the convolution before it, so that its weights keep their names."""
    for module in list(model.modules()):
        children = list(module.named_children())
        for (name, conv), (bn_name, bn) in pairwise(children):
            if isinstance(bn, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(conv, bn))
                setattr(module, bn_name, nn.Identity())
    return model


def export(model, path):
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        path,
        opset_version=17,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        dynamo=False,  # names nodes after modules: /block1/conv2/Conv
    )
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    onnx.checker.check_model(model)
    onnx.save(model, path)


class Reader(CalibrationDataReader):
    def __init__(self, images):
        self.batches = iter(np.array_split(images, len(images) // 50))

    def get_next(self):
        batch = next(self.batches, None)
        return None if batch is None else {"image": batch}


def quantize(path, quantized, images):
    """Writes a Q/DQ model with ONNX Runtime's quantizer, in the form that TensorRT takes."""
    ops = ["Conv", "Gemm", "Add"]
    quantize_static(
        path,
        quantized,
        Reader(images),
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=ops,
        per_channel=True,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "AddQDQPairToWeight": True,
            "OpTypesToExcludeOutputQuantization": ops,
        },
    )


def ranges_by_hand(path):
    """Returns tensor name -> [min, max] for the input and every node's output, by rule of thumb."""
    graph = onnx.load(path).graph
    names = [graph.input[0].name] + [name for node in graph.node for name in node.output]
    bounds = {name: BUSY_RANGE if name.startswith(BUSY) else USUAL_RANGE for name in names}
    return {name: [-bound, bound] for name, bound in bounds.items()}


def main():
    torch.manual_seed(0)
    images, validation, labels, validation_labels = split()
    calibration = images[np.random.default_rng(0).choice(len(images), CALIBRATION_IMAGES, replace=False)]
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    np.savez_compressed(data / "calibration.npz", image=calibration)
    np.savez_compressed(data / "validation.npz", image=validation)
    np.save(data / "validation_labels.npy", validation_labels)

    model = fold_batchnorm(train(images, labels))
    with torch.no_grad():
        predicted = model(torch.from_numpy(validation)).argmax(1).numpy()
    print(f"validation top-1: {np.mean(predicted == validation_labels):.4f}")

    export(model, HERE / "digits.onnx")
    quantize(HERE / "digits.onnx", HERE / "digits.qdq.onnx", calibration)
    ranges = ranges_by_hand(HERE / "digits.onnx")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(bounds)}" for name, bounds in ranges.items())
    (HERE / "dynamic_ranges.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
