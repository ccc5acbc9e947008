"""Networks of the corpus with attention, LayerNorm, RMSNorm, GELU, SiLU and depthwise convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention, silu

from benchmarks.regressions.data import CLASSES, LINE, STEPS, VOCABULARY
from benchmarks.train import ConvUnit, Head

_HEADS = 4


def _heads(x: Tensor) -> Tensor:
    """[n, tokens, width] to [n, heads, tokens, width / heads]."""
    return x.unflatten(-1, (_HEADS, -1)).transpose(1, 2)


class Encoder(nn.Module):
    """BERT on tokens: embeddings and a norm, three layers of PyTorch's own, a pooler, a classifier."""

    def __init__(self, width: int = 48):
        super().__init__()
        torch.backends.mha.set_fastpath_enabled(False)  # the fused layer has no ONNX operator
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.position = nn.Parameter(0.1 * torch.randn(1, STEPS, width))
        self.norm = nn.LayerNorm(width)
        layers = [
            nn.TransformerEncoderLayer(width, _HEADS, 2 * width, 0.0, "gelu", batch_first=True)
            for _ in range(3)
        ]
        self.layers = nn.ModuleList(layers)
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the network."""
        absent = tokens == 0
        x = self.norm(self.words(tokens) + self.position)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=absent)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class RMSNorm(nn.Module):
    """Root-mean-square norm as language models write it (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Run the norm."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class DecoderBlock(nn.Module):
    """Causal attention with rotary positions, then SwiGLU (Touvron and others, 2023)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Run the block."""
        y = self.norm1(x)
        query, key, value = (_heads(f(y)) for f in (self.query, self.key, self.value))
        query, key = (t * cos + torch.cat(t.chunk(2, -1)[::-1], -1) * sin for t in (query, key))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model: two blocks, and the transposed embeddings as its head."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.words.weight, std=0.3)
        self.blocks = nn.ModuleList([DecoderBlock(width) for _ in range(2)])
        self.norm = RMSNorm(width)
        half = width // _HEADS // 2
        angles = torch.arange(STEPS - 1)[:, None] / 100.0 ** (torch.arange(half) / half)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([-angles.sin(), angles.sin()], -1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the network."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x) @ self.words.weight.T


class SvtrBlock(nn.Module):
    """Pre-norm attention with query, key and value in one product, then SiLU between two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on [n, tokens, width]."""
        query, key, value = (_heads(t) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.fc2(silu(self.fc1(self.norm2(x))))


class Recognizer(nn.Module):
    """Text recognition (SVTR, 2022): depthwise convolutions, two attention blocks, a class per column."""

    def __init__(self, width: int = 48):
        super().__init__()
        act = nn.Hardswish()
        self.stem = nn.Sequential(ConvUnit(1, 16, relu=False, stride=2), act)
        self.depthwise1 = nn.Sequential(ConvUnit(16, 16, relu=False, groups=16), act)
        self.point1 = nn.Sequential(ConvUnit(16, 32, 1, relu=False), act)
        self.depthwise2 = nn.Sequential(ConvUnit(32, 32, 5, relu=False, groups=32, stride=(2, 1)), act)
        self.point2 = nn.Sequential(ConvUnit(32, width, 1, relu=False), act)
        self.pool = nn.AvgPool2d((2, 1))
        self.blocks = nn.Sequential(*[SvtrBlock(width) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        x = self.point1(self.depthwise1(self.stem(x)))
        x = self.pool(self.point2(self.depthwise2(x))).squeeze(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)))


class SwinBlock(nn.Module):
    """Attention inside 2x2 windows, moved by one where ``shift``, with a bias per relative position."""

    def __init__(self, width: int, shift: bool):
        super().__init__()
        self.shift = shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(0.1 * torch.randn(1, 1, _HEADS, 4, 4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on [n, side, side, width]."""
        side, width = x.shape[1] // 2, x.shape[-1]
        y = self.norm1(x)
        if self.shift:
            y = y.roll((-1, -1), (1, 2))
        y = y.reshape(-1, side, 2, side, 2, width).transpose(2, 3).reshape(-1, side * side, 4, width)
        parts = self.qkv(y).unflatten(-1, (3, _HEADS, -1)).permute(3, 0, 1, 4, 2, 5)
        query, key, value = parts[0] * (width // _HEADS) ** -0.5, parts[1], parts[2]
        y = torch.softmax(query @ key.transpose(-1, -2) + self.bias, -1) @ value
        y = self.proj(y.transpose(2, 3).flatten(3))
        y = y.reshape(-1, side, side, 2, 2, width).transpose(2, 3).reshape(-1, 2 * side, 2 * side, width)
        x = x + (y.roll((1, 1), (1, 2)) if self.shift else y)
        return x + self.fc2(gelu(self.fc1(self.norm2(x))))


class Swin(nn.Module):
    """Two stages of windows, moved and not, with patches merged between them (Liu and others, 2021)."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(1, width, 2, stride=2), nn.LayerNorm(width)
        self.stage1 = nn.Sequential(SwinBlock(width, False), SwinBlock(width, True))
        self.merge_norm, self.merge = nn.LayerNorm(4 * width), nn.Linear(4 * width, 48, bias=False)
        self.stage2 = SwinBlock(48, False)
        self.last, self.head = nn.LayerNorm(48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        x = self.stage1(self.norm(self.patches(x).permute(0, 2, 3, 1)))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        x = self.stage2(self.merge(self.merge_norm(torch.cat(corners, -1))))
        return self.head(self.last(x).mean((1, 2)))


class MBConv(nn.Module):
    """Expansion, depthwise, squeeze and excitation, projection, with SiLU (Tan and Le, 2019)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        wide = 3 * inputs
        self.expand = ConvUnit(inputs, wide, 1, relu=False)
        self.depthwise = ConvUnit(wide, wide, relu=False, stride=stride, groups=wide)
        self.squeeze, self.excite = nn.Conv2d(wide, 8, 1), nn.Conv2d(8, wide, 1)
        self.project = ConvUnit(wide, outputs, 1, relu=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        y = silu(self.depthwise(silu(self.expand(x))))
        y = y * torch.sigmoid(self.excite(silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.project(y)
        return x + y if self.residual else y


class Efficient(nn.Module):
    """Stem, four MBConv blocks, 1x1 convolution, linear layer."""

    def __init__(self):
        super().__init__()
        self.stem = ConvUnit(3, 16, relu=False)
        shapes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 1)]
        self.blocks = nn.Sequential(*[MBConv(*s) for s in shapes])
        self.last, self.head = ConvUnit(32, 64, 1, relu=False), Head(64)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        return self.head(silu(self.last(self.blocks(silu(self.stem(x))))))


class ConvNextBlock(nn.Module):
    """Depthwise 5x5, LayerNorm, linear layers around a GELU, a scale per channel (Liu and others, 2022)."""

    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm, self.scale = nn.LayerNorm(width), nn.Parameter(0.5 * torch.ones(width))
        self.fc1, self.fc2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on [n, width, side, side]."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.fc2(gelu(self.fc1(y)))).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """A stem, two blocks, a strided convolution, two blocks, a norm, a linear layer."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stage1 = nn.Sequential(ConvNextBlock(width), ConvNextBlock(width))
        self.down = nn.Conv2d(width, 40, 2, stride=2)
        self.stage2 = nn.Sequential(ConvNextBlock(40), ConvNextBlock(40))
        self.norm, self.head = nn.LayerNorm(40), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network."""
        return self.head(self.norm(self.stage2(self.down(self.stage1(self.stem(x)))).mean((2, 3))))


#: Network to what makes it.
NETWORKS = {
    "encoder": Encoder,
    "decoder": Decoder,
    "recognizer": Recognizer,
    "swin": Swin,
    "efficient": Efficient,
    "convnext": ConvNext,
}


def line_loss(outputs: Tensor, truth: Tensor) -> Tensor:
    """Connectionist temporal classification of [n, columns, classes] against [n, ``LINE``] digits."""
    logs = outputs.log_softmax(-1).transpose(0, 1)
    steps = torch.full((len(truth),), logs.shape[0])
    return nn.functional.ctc_loss(logs, truth + 1, steps, torch.full((len(truth),), LINE))


def next_loss(outputs: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of each next token; padding does not count."""
    wanted = pad(tokens[:, 1:], (0, 1))[:, : outputs.shape[1]]
    return nn.functional.cross_entropy(outputs.flatten(0, 1), wanted.flatten(), ignore_index=0)
