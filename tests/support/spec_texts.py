"""Valid specs that several test modules start from, and the schema by which editors judge them."""

from __future__ import annotations

import json

import jsonschema
from packages import PACKAGE

SCHEMA = json.loads((PACKAGE / "int8acc.schema.json").read_text(encoding="utf-8"))
_KNOWN = SCHEMA["definitions"]
#: Metrics of outputs that a spec may name, and those of labels.
OUTPUT_METRICS = {names["required"][0] for names in _KNOWN["OutputCriterion"]["anyOf"]}
TASKS = set(_KNOWN["MetricCriterion"]["properties"]["metric"]["pattern"][2:].partition(")")[0].split("|"))
_JUDGE = jsonschema.Draft7Validator(SCHEMA)

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
  - {output: mask, mse: 0.01, tolerance: {abs: 1e-3, check: quantile, quantile: 0.9}}
  - {metric: metrics.py:top1, min: 0.7, max_drop: 0.5%}
  - {metric: metrics.py:loss, max_drop: 1e-2, lower_is_better: true}
  - {metric: f1, output: mask, axis: 1, ignore: 255, average: micro, label: classes, max_drop: 1%}
  - {metric: coco_map, decode: yolov8, min: 0.4}
  - {metric: wer, decode: ctc.py:texts, max_drop: 0.005}
  - {metric: psnr, data_range: 2, min: 30}
marks: [slow, gpu]
xfail: known to be off
skip: too slow
"""

#: What a case may say of TensorRT, of goldens and of files beside the model.
TENSORRT = """\
model: yolov5s.onnx
inputs: data/val.npz
reference: torch_outputs.npz
int8:
  implicit:
    calibrate: {data: calib.npz, algorithm: minmax, samples: 300}
    cache: calibration.cache
baseline: {engine: yolov5s_fp16.engine}
golden: {dtype: float16, samples: 64}
backend: tensorrt
tensorrt:
  shapes:
    images: [[1, 3, 320, 320], [8, 3, 640, 640], [8, 3, 640, 640]]
    scale: [[], [], []]
  plugins: [plugins/libdecode.so]
  workspace: 4G
  optimization_level: 0
  tactic_sources: [CUBLAS, CUDNN]
  timeout: 600
search:
  when: always
  for: latency
  strategy: bisect
  keep: fp32
  max_builds: 4
  max_seconds: 60
  certify: true
criteria:
  - {int8_layers: 0.9, speedup: 1.3}
  - {speedup: 2}
  - {regression: {cosine: 1e-4, top1: 0.002}}
  - {output: boxes, max_abs: 4}
"""

#: Engines that are built already, and outputs kept in the repository.
BUILT = """\
defaults:
  model: a.onnx
  inputs: a.npz
  tensorrt: {workspace: 512M, tactic_sources: []}
cases:
  - {name: engine, int8: {engine: a.engine}, baseline: golden}
  - {name: cache, int8: {implicit: {cache: a.cache}}, golden: true, tensorrt: {workspace: 4G}}
  - {name: guarded, int8: {model: a.qdq.onnx}, plan: plan.yaml, golden: false}
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

#: By name.
VALID = {
    "everything": EVERYTHING,
    "minimal": MINIMAL,
    "several": SEVERAL,
    "tensorrt": TENSORRT,
    "built": BUILT,
}


def is_valid(spec: object) -> bool:
    """Whether the schema accepts what a spec says."""
    return bool(_JUDGE.is_valid(spec))
