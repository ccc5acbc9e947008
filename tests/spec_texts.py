"""Valid specs that several test modules start from."""

MINIMAL = "model: a.onnx\ninputs: a.npz\nint8: {calibrate: {}}\n"

EVERYTHING = """\
# yaml-language-server: $schema=int8acc.schema.json
name: resnet50-bs8
model: resnet50.onnx
inputs: {random: {samples: 64, seed: 7}}
labels: labels.py:load
batch: 8
samples: 60
int8:
  calibrate: {data: calib.npz, method: percentile, percentile: 99.9, samples: 500}
  exclude: [/fc/Gemm, "*head*"]
baseline: {model: resnet50.fp32.onnx}
backend: onnxruntime
onnxruntime: {mode: native, provider: cuda}
criteria:
  - {output: logits, axis: 1, cosine: 0.999, sqnr_db: 20, top1_agreement: 1}
  - {output: "aux*", max_rel: 1e-3, rel_floor: 1e-2}
  - {metric: metrics.py:top1, min: 0.7, max_drop: 0.5%}
  - {metric: metrics.py:loss, max_drop: 1e-2, lower_is_better: true}
marks: [slow, gpu]
xfail: known to be off
skip: too slow
"""

SEVERAL = """\
defaults:
  model: a.onnx
  inputs: a.npz
  int8: {calibrate: {method: mse}}
  marks: [slow]
cases:
  - name: first
  - {name: second, int8: {scales: s.cache}, marks: []}

  - batch: 4
    name: third
"""
