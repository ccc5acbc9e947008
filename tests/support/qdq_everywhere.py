"""A Q/DQ model with pairs where ours never are: biases, pools, Concat, outputs, readers that stay in FP32."""

from __future__ import annotations

import numpy as np
from written_networks import model

from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.tensors import Feed

_TEXT = """
    <ir_version: 8, opset_import: ["": 17]>
    everywhere (float[2, 4, 8, 8] x) => (float[2, 8] logits, float[2, 4, 4, 4] pooled, int64[k, 3] picked)
    <float sx = {0.031}, float sc = {0.047}, float sp = {0.043}, float sr = {0.055}, float sn = {0.021},
     float sh = {0.019}, float sv = {0.008}, int8 z = {0}, uint8 u = {128}, int64[1] three = {3},
     int64[3] corners = {2, -1, 4}, int64[3] classes = {2, 1, -1}>
    {
        xq = QuantizeLinear(x, sx, u)
        xd = DequantizeLinear(xq, sx, u)
        wd = DequantizeLinear <axis: int = 0> (w, sw, zw)
        bd = DequantizeLinear <axis: int = 0> (b, sb)
        c = Conv <pads = [1, 1, 1, 1]> (xd, wd, bd)
        cq = QuantizeLinear(c, sc, z)
        cd = DequantizeLinear(cq, sc, z)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (cd)
        pq = QuantizeLinear(p, sp, z)
        pooled = DequantizeLinear(pq, sp, z)
        h = HardSwish(pooled)
        hq = QuantizeLinear(h, sh, z)
        hd = DequantizeLinear(hq, sh, z)
        r = Concat <axis = 1> (pooled, hd)
        rq = QuantizeLinear(r, sr, z)
        rd = DequantizeLinear(rq, sr, z)
        g = GlobalAveragePool(rd)
        f = Flatten(g)
        vd = DequantizeLinear(v, sv, z)
        vt = Transpose <perm = [1, 0]> (vd)
        logits = MatMul(f, vt)
        nq = QuantizeLinear(x, sn, z)
        nd = DequantizeLinear(nq, sn, z)
        boxes = Reshape(nd, corners)
        boxq = QuantizeLinear(boxes, sn, z)
        boxd = DequantizeLinear(boxq, sn, z)
        best = ReduceMax <axes = [2]> (boxes)
        scores = Reshape(best, classes)
        picked = NonMaxSuppression(boxd, scores, three)
    }
"""


def everywhere() -> Network:
    """Groups of several nodes, of one edge and of three; int8, uint8 and int32; a Cast where FP16 ends."""
    rng = np.random.default_rng(0)
    channels = np.array([0.011, 0.007, 0.013, 0.009], np.float32)
    constants = {
        "w": rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
        "sw": channels,
        "zw": np.zeros(4, np.int8),
        "b": rng.integers(-900, 900, 4).astype(np.int32),
        "sb": channels * np.float32(0.031),
        "v": rng.integers(-127, 128, (8, 8)).astype(np.int8),
    }
    return read_qdq(model(_TEXT, constants))


def everywhere_feed(seed: int = 0) -> Feed:
    """Inputs for it."""
    return {"x": np.random.default_rng(seed).normal(size=(2, 4, 8, 8)).astype(np.float32)}
