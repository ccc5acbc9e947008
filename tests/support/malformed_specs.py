"""Every way to get a spec wrong: each mistake told once, at its place, in words that say what to mend."""

from spec_texts import MINIMAL

# What follows the three lines of a valid case, and the mistakes: (line, column, what the message says).
ADDED = {
    "unknown key, near": ("citeria: []", [(4, 1, "unknown key 'citeria' (did you mean 'criteria'?)")]),
    "unknown key, far": ("zebra: 1", [(4, 1, "unknown key 'zebra' (known here: name, model, inputs,")]),
    "key of a deeper place": (
        "method: mse",
        [(4, 1, "'method' (it belongs under 'int8.calibrate' or under 'fp8.c")],
    ),
    "key of a criterion": ("cosine: 0.9", [(4, 1, "'cosine' (it belongs under 'criteria')")]),
    "number as key": ("1: x", [(4, 1, "unknown key '1'")]),
    "null as key": ("~: x", [(4, 1, "unknown key '~'")]),
    "name a number": ("name: 8", [(4, 7, "name: expected a name of letters,|found 8; put it in quotes")]),
    "name with a bracket": ("name: a[1]", [(4, 7, "name: expected a name of letters,|found 'a[1]'")]),
    "name with a slash": ("name: ../x", [(4, 7, "name: expected a name of letters,|found '../x'")]),
    "name of dots": ("name: ..", [(4, 7, "starts with a letter, a digit or '_', found '..'")]),
    "name a list": ("name: [a]", [(4, 7, "found a list")]),
    "batch zero": ("batch: 0", [(4, 8, "batch: expected a whole number of at least 1, found 0")]),
    "batch a float": ("batch: 2.5", [(4, 8, "batch: expected a whole number of at least 1, found 2.5")]),
    "batch a bool": ("batch: true", [(4, 8, "found true")]),
    "batch quoted": ("batch: '8'", [(4, 8, "found '8'; write 8 without quotes")]),
    "batch by YAML 1.1": ("batch: 1_000", [(4, 8, "found '1_000'; write 1000 without quotes")]),
    "samples negative": (
        "samples: -3",
        [(4, 10, "samples: expected a whole number of at least 1, found -3")],
    ),
    "samples a mapping": ("samples: {n: 3}", [(4, 10, "found a mapping")]),
    "labels empty": ("labels:", [(4, 1, "'labels' has no value; give one, or remove the key")]),
    "labels null": ("labels: ~", [(4, 1, "'labels' has no value")]),
    "labels random": (
        "labels: {random: {}}",
        [(4, 9, "labels: expected a .npy, .npz, .txt or|found a mapping")],
    ),
    "labels without function": ("labels: l.py", [(4, 9, "as 'l.py:function', found 'l.py'")]),
    "baseline typo": (
        "baseline: fp61",
        [(4, 11, "golden, {model: FILE} or {engine: FILE}, found 'fp61' (did you mean 'fp16'?)")],
    ),
    "baseline a number": ("baseline: 16", [(4, 11, "baseline: expected one of fp16, fp32|found 16")]),
    "baseline without model": (
        "baseline: {}",
        [(4, 11, "golden, {model: FILE} or {engine: FILE}, found an empty mapping")],
    ),
    "baseline a model and an engine": (
        "baseline: {model: m, engine: e}",
        [(4, 22, "'engine' and 'model' exclude each other: keep one")],
    ),
    "baseline with a typo": (
        "baseline: {modle: b}",
        [(4, 12, "unknown key 'modle' (did you mean 'model'?)")],
    ),
    "baseline model a list": (
        "baseline: {model: [b]}",
        [(4, 19, "model: expected a file's path, found a list")],
    ),
    "backend unknown": (
        "backend: tensorflow",
        [(4, 10, "backend: expected one of auto, onnxruntime|'tensorflow'")],
    ),
    "backend typo": ("backend: onnxruntme", [(4, 10, "(did you mean 'onnxruntime'?)")]),
    "onnxruntime text": (
        "onnxruntime: exact",
        [(4, 14, "expected a mapping like {mode: exact,|found 'exact'")],
    ),
    "mode unknown": (
        "onnxruntime: {mode: fast}",
        [(4, 21, "mode: expected one of exact, native, found 'fast'")],
    ),
    "provider gpu": (
        "onnxruntime: {provider: gpu}",
        [(4, 25, "provider: expected one of cpu, cuda, found 'gpu'")],
    ),
    "mode misplaced": ("mode: exact", [(4, 1, "'mode' (it belongs under 'onnxruntime')")]),
    "marks text": (
        "marks: gpu",
        [(4, 8, "marks: expected a list of pytest marks, found 'gpu'; write ['gpu']")],
    ),
    "marks mapping": ("marks: {gpu: 1}", [(4, 8, "found a mapping {gpu: ...}; start each item with '- '")]),
    "mark not a name": (
        "marks: [gpu, a-b]",
        [(4, 14, "marks: expected the name of a pytest mark|found 'a-b'")],
    ),
    "mark null": ("marks: [gpu, ~]", [(4, 14, "marks: expected the name of a pytest mark|found nothing")]),
    "mark skip": ("marks: [skip]", [(4, 9, "'skip' needs a reason: use the key 'skip: why'")]),
    "mark parametrize": ("marks: [parametrize]", [(4, 9, "'parametrize' takes arguments")]),
    "xfail a bool": ("xfail: true", [(4, 8, "xfail: expected the reason, as text, found true")]),
    "skip no": ("skip: no", [(4, 7, "skip: expected the reason, as text, found 'no', which is no reason")]),
    "skip empty text": ("skip: ''", [(4, 7, "skip: expected the reason, as text, found ''")]),
    "criteria empty": ("criteria:", [(4, 1, "'criteria' has no value")]),
    "criteria a mapping": ("criteria: {cosine: 1}", [(4, 11, "criteria: expected a list of criteria|'- '")]),
    "criterion text": (
        "criteria: [cosine]",
        [(4, 12, "criteria: expected a criterion like {output: logits,")],
    ),
    "criterion null": ("criteria: [~]", [(4, 12, "criteria: expected a criterion like|found nothing")]),
    "criterion without limit": (
        "criteria: [{output: y}]",
        [(4, 12, "a criterion needs a limit; add one or more of c")],
    ),
    "criterion of nothing": ("criteria: [{}]", [(4, 12, "a criterion needs a limit")]),
    "cosine text": (
        "criteria:\n- cosine: high",
        [(5, 11, "cosine: expected a number between -1 and 1, found 'high'")],
    ),
    "cosine range": (
        "criteria: [{cosine: 1.01}]",
        [(4, 21, "cosine: expected a number between -1 and 1, found 1.01")],
    ),
    "cosine quoted": ("criteria: [{cosine: '1e-3'}]", [(4, 21, "found '1e-3'; write 0.001 without quotes")]),
    "cosine nan": (
        "criteria: [{cosine: .nan}]",
        [(4, 21, "cosine: expected a number between -1 and 1, found .nan")],
    ),
    "cosine empty": ("criteria: [{cosine: }]", [(4, 13, "'cosine' has no value")]),
    "cosine typo": ("criteria: [{cosin: 0.9}]", [(4, 13, "unknown key 'cosin' (did you mean 'cosine'?)")]),
    "sqnr infinite": ("criteria: [{sqnr_db: .inf}]", [(4, 22, "sqnr_db: expected a number, found .inf")]),
    "sqnr too large": ("criteria: [{sqnr_db: 1e999}]", [(4, 22, "sqnr_db: expected a number, found .inf")]),
    "max_abs negative": (
        "criteria: [{max_abs: -1}]",
        [(4, 22, "max_abs: expected a number of at least 0, found -1")],
    ),
    "max_abs bool": (
        "criteria: [{max_abs: true}]",
        [(4, 22, "max_abs: expected a number of at least 0, found true")],
    ),
    "rel_floor zero": (
        "criteria: [{max_rel: 1, rel_floor: 0}]",
        [(4, 36, "expected a number greater than 0, found 0")],
    ),
    "rel_floor alone": ("criteria: [{rel_floor: 1}]", [(4, 12, "a criterion needs a limit")]),
    "agreement percent": (
        "criteria: [{agreement: 99}]",
        [(4, 24, "expected a number between 0 and 1, found 99")],
    ),
    "top1 text": (
        "criteria: [{top1_agreement: 99%}]",
        [(4, 29, "expected a number between 0 and 1, found '99%'")],
    ),
    "axis float": ("criteria: [{kl: 0.1, axis: 1.5}]", [(4, 28, "axis: expected a whole number, found 1.5")]),
    "output a number": (
        "criteria: [{output: 495, kl: 1}]",
        [(4, 21, "output: expected text, found 495; put it in quotes")],
    ),
    "tolerance a number": (
        "criteria: [{tolerance: 1e-3}]",
        [(4, 24, "tolerance: expected a mapping like {abs: 1e-3, rel: 1e-3, check: elemwise}, found 0.001")],
    ),
    "tolerance of Polygraphy's names": (
        "criteria: [{tolerance: {atol: 1}}]",
        [(4, 25, "unknown key 'atol' (known here: abs, rel, check, quantile)")],
    ),
    "tolerance by another statistic": (
        "criteria: [{tolerance: {check: medain}}]",
        [(4, 32, "elemwise, max, mean, median, quantile, found 'medain' (did you mean 'median'?)")],
    ),
    "quantile without its check": (
        "criteria: [{tolerance: {quantile: 0.5}}]",
        [(4, 25, "'quantile' has no effect here; remove it, or set 'check: quantile'")],
    ),
    "named metric, near": (
        "criteria: [{metric: top_1, min: 1}]",
        [(4, 21, "or a Python function as 'file.py:function', found 'top_1' (did you mean 'top1'?)")],
    ),
    "named metric of other libraries": (
        "criteria: [{metric: mAP, min: 1}]",
        [(4, 21, "metric: expected top1, top5, f1, miou, coco_map, wer, ssim, psnr, or|found 'mAP'")],
    ),
    "named metric that streams": (
        "criteria: [{metric: top1, min: 1, streaming: true}]",
        [(4, 35, "'streaming' has no effect on metric top1: it is for a function of your own")],
    ),
    "function with an output": (
        "criteria: [{metric: m.py:f, min: 1, output: y}]",
        [(4, 37, "'output' has no effect on metric m.py:f: it is for a named metric (top1, top5,")],
    ),
    "average of top1": (
        "criteria: [{metric: top1, min: 1, average: macro}]",
        [(4, 35, "'average' has no effect on metric top1: it is for f1")],
    ),
    "average unknown": (
        "criteria: [{metric: f1, min: 1, average: marco}]",
        [
            (
                4,
                42,
                "expected one of macro, micro, weighted, binary, found 'marco' (did you mean 'macro'?)",
            )
        ],
    ),
    "boxes of wer": (
        "criteria: [{metric: wer, min: 1, decode: yolov8}]",
        [(4, 34, "'decode: yolov8' is a layout of boxes; wer needs 'file.py:function'")],
    ),
    "coco_map without decode": (
        "criteria: [{metric: coco_map, min: 1}]",
        [(4, 12, "coco_map needs 'decode': xyxy, yolov5, yolov8, or 'file.py:function'")],
    ),
    "layout unknown": (
        "criteria: [{metric: coco_map, min: 1, decode: yolo8}]",
        [(4, 47, "decode: expected xyxy, yolov5, yolov8, or|found 'yolo8' (did you mean 'yolov8'?)")],
    ),
    "output beside decode": (
        "criteria: [{metric: coco_map, min: 1, decode: d.py:f, output: y}]",
        [(4, 55, "'output' has no effect beside your decode function")],
    ),
    "named metric without limit": (
        "criteria: [{metric: top1}]",
        [(4, 12, "a metric needs a limit; add one or more of min, max, max_drop")],
    ),
    "metric without function": (
        "criteria: [{metric: m.py, min: 1}]",
        [(4, 21, "metric: expected|found 'm.py'")],
    ),
    "metric without limit": (
        "criteria: [{metric: m.py:f}]",
        [(4, 12, "a metric needs a limit; add one or more of min,")],
    ),
    "metric typo": (
        "criteria: [{metrc: m.py:f, min: 1}]",
        [(4, 13, "unknown key 'metrc' (did you mean 'metric'?)")],
    ),
    "metric missing": (
        "criteria: [{max_drop: 1}]",
        [(4, 12, "'metric' is missing: add 'metric: metrics.py:top1'")],
    ),
    "metric with cosine": (
        "criteria: [{metric: m.py:f, min: 1, cosine: 1}]",
        [(4, 37, "unknown key 'cosine' (it belongs in another item of 'criteria')")],
    ),
    "min above max": (
        "criteria: [{metric: m.py:f, min: 2, max: 1}]",
        [(4, 29, "'min' 2 is greater than 'max' 1")],
    ),
    "max_drop text": (
        "criteria: [{metric: m.py:f, max_drop: 1 pct}]",
        [(4, 39, "percentage of|found '1 pct'")],
    ),
    "max_drop negative": (
        "criteria: [{metric: m.py:f, max_drop: -1}]",
        [(4, 39, "at least 0, or a|found -1")],
    ),
    "max_drop negative percent": ("criteria: [{metric: m.py:f, max_drop: -1%}]", [(4, 39, "found '-1%'")]),
    "lower_is_better yes": (
        "criteria: [{metric: m.py:f, min: 1, lower_is_better: yes}]",
        [(4, 54, "lower_is_better: expected true or false, found 'yes'")],
    ),
    "tensorrt text": ("tensorrt: fast", [(4, 11, "expected a mapping like {workspace: 4G,|found 'fast'")]),
    "tensorrt empty": ("tensorrt:", [(4, 1, "'tensorrt' has no value")]),
    "tensorrt typo": (
        "tensorrt: {shape: {x: [[1], [2], [3]]}}",
        [(4, 12, "unknown key 'shape' (did you mean 'shapes'?)")],
    ),
    "workspace misplaced": ("workspace: 4G", [(4, 1, "'workspace' (it belongs under 'tensorrt')")]),
    "shapes a list": (
        "tensorrt: {shapes: [[1], [2], [3]]}",
        [(4, 20, "shapes: expected a mapping of inputs to three shapes,|found a list")],
    ),
    "shapes one": (
        "tensorrt: {shapes: {x: [1, 3]}}",
        [(4, 25, "x: expected a shape like|found 1"), (4, 28, "x: expected a shape like|found 3")],
    ),
    "shapes text": (
        "tensorrt: {shapes: {x: batch}}",
        [(4, 24, "x: expected three shapes, smallest, usual and largest,|found 'batch'")],
    ),
    "shapes empty": ("tensorrt: {shapes: {x: }}", [(4, 21, "'x' has no value")]),
    "shapes two": ("tensorrt: {shapes: {x: [[1], [8]]}}", [(4, 24, "x: expected three shapes,|found 2")]),
    "shapes four": (
        "tensorrt: {shapes: {x: [[1], [2], [3], [4]]}}",
        [(4, 24, "x: expected three shapes,|found 4")],
    ),
    "shapes that shrink": (
        "tensorrt: {shapes: {x: [[8, 3], [1, 3], [16, 3]]}}",
        [(4, 24, "x: the three shapes must have one rank, and no dimension may shrink")],
    ),
    "shapes of two ranks": (
        "tensorrt: {shapes: {x: [[1, 3], [8, 3, 1], [16, 3]]}}",
        [(4, 24, "x: the three shapes must have one rank")],
    ),
    "shapes open": (
        "tensorrt: {shapes: {x: [[1, 3], [8, -1], [16, n]]}}",
        [(4, 37, "x: expected a whole number of at least 0, found -1"), (4, 47, "found 'n'")],
    ),
    "plugins text": (
        "tensorrt: {plugins: lib.so}",
        [(4, 21, "plugins: expected a list of plugin libraries, found 'lib.so'; write ['lib.so']")],
    ),
    "plugins a number": ("tensorrt: {plugins: [3]}", [(4, 22, "plugins: expected a file's path, found 3")]),
    "workspace a number": (
        "tensorrt: {workspace: 4096}",
        [(4, 23, "workspace: expected a size like 500M or 4G, found 4096")],
    ),
    "workspace of nothing": ("tensorrt: {workspace: 0G}", [(4, 23, "workspace: expected a size|found '0G'")]),
    "optimization level": (
        "tensorrt: {optimization_level: 6}",
        [(4, 32, "optimization_level: expected a whole number from 0 to 5, found 6")],
    ),
    "tactic sources text": (
        "tensorrt: {tactic_sources: CUBLAS}",
        [(4, 28, "tactic_sources: expected a list of tactic sources,|write ['CUBLAS']")],
    ),
    "timeout with a unit": (
        "tensorrt: {timeout: 30m}",
        [(4, 21, "timeout: expected a whole number of at least 1, found '30m'")],
    ),
    "golden yes": ("golden: yes", [(4, 9, "golden: expected true, or a mapping like {dtype:|found 'yes'")]),
    "golden a type": ("golden: float16", [(4, 9, "golden: expected true, or a mapping|found 'float16'")]),
    "golden dtype": (
        "golden: {dtype: float61}",
        [(4, 17, "dtype: expected one of float32, float16, found 'float61' (did you mean 'float16'?)")],
    ),
    "golden typo": ("golden: {sample: 3}", [(4, 10, "unknown key 'sample' (did you mean 'samples'?)")]),
    "golden samples": ("golden: {samples: 0}", [(4, 19, "samples: expected a whole number of at least 1")]),
    "baseline golden typo": ("baseline: goldn", [(4, 11, "found 'goldn' (did you mean 'golden'?)")]),
    "baseline engine typo": (
        "baseline: {engin: e}",
        [(4, 12, "unknown key 'engin' (did you mean 'engine'?)")],
    ),
    "baseline engine a number": (
        "baseline: {engine: 3}",
        [(4, 20, "engine: expected a file's path, found 3")],
    ),
    "reference a list": ("reference: [a.npz]", [(4, 12, "reference: expected a file's path, found a list")]),
    "reference empty": ("reference:", [(4, 1, "'reference' has no value")]),
    "plan written out": (
        "plan: {high: [a]}",
        [(4, 7, "plan: expected a file's path, found a mapping {high")],
    ),
    "int8_layers percent": (
        "criteria: [{int8_layers: 90%}]",
        [(4, 26, "int8_layers: expected a number between 0 and 1, found '90%'")],
    ),
    "int8_layers typo": (
        "criteria: [{int8_layer: 0.9}]",
        [(4, 13, "unknown key 'int8_layer' (did you mean 'int8_layers'?)")],
    ),
    "int8_layers of an output": (
        "criteria: [{output: y, sqnr_db: 20, int8_layers: 0.9}]",
        [(4, 37, "unknown key 'int8_layers' (it belongs in another item of 'criteria')")],
    ),
    "speedup zero": (
        "criteria: [{speedup: 0}]",
        [(4, 22, "speedup: expected a number greater than 0, found 0")],
    ),
    "speedup with a unit": ("criteria: [{speedup: 1.3x}]", [(4, 22, "speedup: expected|found '1.3x'")]),
    "speedup of a metric": (
        "criteria: [{metric: m.py:f, min: 1, speedup: 2}]",
        [(4, 37, "unknown key 'speedup' (it belongs in another item of 'criteria')")],
    ),
    "regression of nothing": (
        "criteria: [{regression: {}}]",
        [(4, 25, "regression: expected a mapping of metrics to how much worse|found an empty mapping")],
    ),
    "regression a number": (
        "criteria: [{regression: 0.1}]",
        [(4, 25, "regression: expected a mapping|found 0.1")],
    ),
    "regression negative": (
        "criteria: [{regression: {cosine: -1}}]",
        [(4, 34, "cosine: expected a number of at least 0, found -1")],
    ),
    "regression percent": (
        "criteria: [{regression: {top1: 1%, kl: 0}}]",
        [(4, 32, "top1: expected a number of at least 0, found '1%'")],
    ),
    "regression typo": (
        "criteria: [{regresion: {cosine: 1}}]",
        [(4, 13, "unknown key 'regresion' (did you mean 'regression'?)")],
    ),
    "regression beside a limit": (
        "criteria: [{regression: {cosine: 1}, cosine: 0.9}]",
        [(4, 13, "unknown key 'regression' (it belongs in another item of 'criteria')")],
    ),
    "backend typo, tensorrt": ("backend: tensort", [(4, 10, "(did you mean 'tensorrt'?)")]),
    "tag": (
        "name: !!python/object/apply:os.system [x]",
        [(4, 7, "found a list"), (4, 7, "tag !!python/object/apply:os.system is not allowed")],
    ),
    "tag of the core schema": ("name: !!str 12", [(4, 7, "tag !!str is not allowed")]),
    "duplicate key": (
        "model: b.onnx",
        [(4, 1, "duplicate key 'model', already given at line 1; keep one of the two")],
    ),
    "duplicate in depth": (
        "criteria: [{kl: 1, kl: 2}]",
        [(4, 20, "duplicate key 'kl', already given at line 4")],
    ),
    "merge key": ("<<: {batch: 1}", [(4, 1, "merge key '<<' is not supported; write the keys out,")]),
    "second document": ("---\nmodel: b.onnx", [(4, 1, "a second document starts here|'cases:'")]),
    "unknown alias": ("name: *base", [(4, 7, "unknown alias '*base': nothing above is named '&base'")]),
    "alias of itself": ("marks: &m [*m]", [(4, 12, "alias '*m' contains itself")]),
    "list as key": ("[a]: 1", [(4, 1, "a key must be plain text")]),
    "mistake behind an alias": (
        "criteria: [&c {kl: x}, *c, *c]",
        [(4, 20, "kl: expected a number of at least 0, found 'x'")],
    ),
    "text with a line break": ('name: "a\\nb"', [(4, 7, "found 'a\\nb'")]),
    "key with a line break": ('"a\\nb": 1', [(4, 1, "unknown key 'a\\nb'")]),
    "path with a null": ('labels: "a\\0b"', [(4, 9, "labels: expected a .npy|'a\\x00b'")]),
    "cases beside a case": (
        "cases: [{name: a}]",
        [(line, 1, "stands beside 'cases:'; move it") for line in (1, 2, 3)],
    ),
    "defaults beside a case": (
        "defaults: {batch: 1}",
        [
            *((line, 1, "stands beside 'defaults:'") for line in (1, 2, 3)),
            (4, 1, "'defaults:' alone makes no case"),
        ],
    ),
}

# Whole files.
FILES = {
    "empty": ("", [(1, 1, "the file is empty; a spec needs at least 'model:'")]),
    "a comment": ("# nothing\n", [(1, 1, "the file is empty")]),
    "an empty document": ("---\n", [(2, 1, "a spec is a mapping|found nothing")]),
    "text": ("hello", [(1, 1, "a spec is a mapping of keys like 'model: resnet50.onnx', found 'hello'")]),
    "list": ("\n- a\n", [(2, 1, "a spec is a mapping|found a list")]),
    "number": ("12", [(1, 1, "found 12")]),
    "all missing": (
        "name: a\n",
        [(1, 1, f"'{key}' is missing: add '{key}: ") for key in ("inputs", "int8", "model")],
    ),
    "missing shows an example": (
        "model: a\ninputs: b\n",
        [(1, 1, "'int8' is missing: add 'int8: {calibrate: {data: calib.npz}}'")],
    ),
    "required empty": ("model:\ninputs: a\nint8: {scales: s}", [(1, 1, "'model' has no value")]),
    "typo of a required key": (
        "modle: a\ninputs: a\nint8: {scales: s}",
        [(1, 1, "'modle' (did you mean 'model'?)")],
    ),
    "case": (
        "Model: a\ninputs: a\nint8: {scales: s}",
        [(1, 1, "unknown key 'Model' (did you mean 'model'?)")],
    ),
    "model a mapping": (
        "model: {a: 1}\ninputs: a\nint8: {scales: s}",
        [(1, 8, "model: expected a file's path, found a")],
    ),
    "model empty text": (
        "model: ''\ninputs: a\nint8: {scales: s}",
        [(1, 8, "model: expected a file's path, found ''")],
    ),
    "inputs a list": (
        "model: a\ninputs: [a]\nint8: {scales: s}",
        [(2, 9, "inputs: expected a file, a folder,|a list")],
    ),
    "inputs without function": (
        "model: a\ninputs: my/load.py\nint8: {scales: s}",
        [(2, 9, "inputs: expected a function in my/load.py, as 'my/load.py:function', found 'my/load.py'")],
    ),
    "inputs of no identifier": (
        "model: a\ninputs: l.py:2\nint8: {scales: s}",
        [(2, 9, "as 'l.py:function', found 'l.py:2'")],
    ),
    "inputs with a typo": (
        "model: a\ninputs: {randm: {}}\nint8: {scales: s}",
        [(2, 10, "'randm' (did you mean 'random'?)")],
    ),
    "random without samples": (
        "model: a\ninputs: {random: {seed: 1}}\nint8: {scales: s}",
        [(2, 18, "random: 'samples' is missing: add 'samples: 64'")],
    ),
    "random a number": (
        "model: a\ninputs: {random: 8}\nint8: {scales: s}",
        [(2, 18, "expected {samples: N, seed: N}, found 8")],
    ),
    "random too shallow": (
        "model: a\ninputs: {samples: 8}\nint8: {scales: s}",
        [(2, 9, "'file.py:function' or {random: {samples: N}}, found a mapping {samples: ...}")],
    ),
    "random and more": (
        "model: a\ninputs: {random: {samples: 8}, samples: 8}\nint8: {scales: s}",
        [
            (
                2,
                32,
                "'samples' (it belongs under 'random' or under 'int8.calibrate' or under 'fp8.calibrate' or "
                "under 'int8.implicit.calibrate' or under 'golden' or at the top of the case)",
            )
        ],
    ),
    "inputs as a mapping": (
        "model: a\ninputs: {loader: l.py:f}\nint8: {scales: s}",
        [(2, 9, "inputs: expected a file, a folder, 'file.py:function' or|found a mapping {loader: ...}")],
    ),
    "inputs in a folder like a script": (
        "model: a\ninputs: my.pyx/load.py\nint8: {scales: s}",
        [(2, 9, "inputs: expected a function in my.pyx/load.py, as 'my.pyx/load.py:function'")],
    ),
    "seed negative": (
        "model: a\ninputs: {random: {samples: 1, seed: -1}}\nint8: {scales: s}",
        [(2, 37, "at least 0, found -1")],
    ),
    "int8 text": (
        "model: a\ninputs: a\nint8: entropy",
        [(3, 7, "int8: expected a mapping with one of 'calibrate', 'scales'")],
    ),
    "int8 empty": (
        "model: a\ninputs: a\nint8: {}",
        [(3, 7, "int8: one of 'calibrate: {}', 'scales: FILE' or 'model: FILE'")],
    ),
    "int8 typo": (
        "model: a\ninputs: a\nint8: {calibrat: {}}",
        [(3, 8, "'calibrat' (did you mean 'calibrate'?)")],
    ),
    "candidate typo": (
        "model: a\ninputs: a\ncandidate: fp61",
        [(3, 12, "candidate: expected one of fp16, bf16, found 'fp61' (did you mean 'fp16'?)")],
    ),
    "candidate beside int8": (
        "model: a\ninputs: a\nint8: {calibrate: {}}\ncandidate: fp16",
        [(3, 1, "'int8' and 'candidate' exclude each other: keep one")],
    ),
    "int8 and fp8": (
        "model: a\ninputs: a\nint8: {calibrate: {}}\nfp8: {calibrate: {}}",
        [(3, 1, "'int8' and 'fp8' exclude each other: keep one")],
    ),
    "fp8 of nothing": (
        "model: a\ninputs: a\nfp8: {}",
        [(3, 6, "one of 'calibrate: {}', 'scales: FILE' or 'model: FILE' must say how FP8 comes about")],
    ),
    "fp8 by an engine": (
        "model: a\ninputs: a\nfp8: {calibrate: {}, engine: a.engine}",
        [(3, 22, "unknown key 'engine'")],
    ),
    "fp8 with int8 layers": (
        "model: a\ninputs: a\nfp8: {calibrate: {}}\ncriteria:\n  - {int8_layers: 0.9}",
        [(4, 1, "'int8_layers' says nothing of a case with 'fp8': remove it")],
    ),
    "fp8 with a share of int8": (
        "model: a\ninputs: a\nfp8: {calibrate: {}}\ncriteria:\n  - {int8_share: 0.9}",
        [(4, 1, "'int8_share' says nothing of a case with 'fp8': remove it")],
    ),
    "realized of an engine": (
        "model: a\ninputs: a\nint8: {engine: a.engine}\nrealized: require",
        [
            (
                4,
                1,
                "'realized' has no effect on 'int8: {engine: ...}', which does not tell what was asked for: "
                "use the criterion {int8_share: 0.9}",
            )
        ],
    ),
    "realized by another word": (
        "model: a\ninputs: a\nint8: {calibrate: {}}\nrealized: strict",
        [(4, 11, "realized: expected one of require, warn, off, found 'strict'")],
    ),
    "fp8 percentile of minmax": (
        "model: a\ninputs: a\nfp8: {calibrate: {percentile: 99}}",
        [(3, 19, "'percentile' has no effect on method minmax")],
    ),
    "candidate against fp16": (
        "model: a\ninputs: a\ncandidate: bf16\nbaseline: fp16",
        [(4, 1, "'candidate: bf16' is compared with FP32: remove 'baseline', or write 'fp32'")],
    ),
    "candidate that keeps fp16": (
        "model: a\ninputs: a\ncandidate: fp16\nsearch: {keep: fp16}",
        [(4, 1, "with 'candidate: fp16', layers are kept in FP32: remove 'keep'")],
    ),
    "candidate with int8 layers": (
        "model: a\ninputs: a\ncandidate: fp16\ncriteria:\n  - {int8_layers: 0.9}",
        [(4, 1, "'int8_layers' says nothing of a case with 'candidate': remove it")],
    ),
    "neither int8 nor candidate": (
        "model: a\ninputs: a",
        [(1, 1, "'int8' is missing: add 'int8: {calibrate: {data: calib.npz}}'")],
    ),
    "int8 of two": (
        "model: a\ninputs: a\nint8:\n  calibrate: {}\n  scales: s",
        [(5, 3, "'scales' and 'calibrate' exclude each other: keep one")],
    ),
    "int8 of three": (
        "model: a\ninputs: a\nint8: {model: m, scales: s, calibrate: {}}",
        [(3, 18, "'scales' and 'model' exclude"), (3, 29, "'calibrate' and 'model' exclude")],
    ),
    "int8 calibrate empty": (
        "model: a\ninputs: a\nint8:\n  calibrate:\n",
        [(4, 3, "'calibrate' has no value")],
    ),
    "int8 calibrate text": (
        "model: a\ninputs: a\nint8: {calibrate: a.npz}",
        [(3, 19, "like {data: calib.npz, method: entropy}")],
    ),
    "int8 with deeper keys": (
        "model: a\ninputs: a\nint8: {calibrate: {}, method: mse}",
        [(3, 23, "unknown key 'method' (it belongs under 'int8.calibrate')")],
    ),
    "int8 with keys of the case": (
        "model: a\ninputs: a\nint8:\n  scales: s\n  criteria: []",
        [(5, 3, "unknown key 'criteria' (it belongs at the top of the case)")],
    ),
    "int8 with a key of several places": (
        "model: a\ninputs: a\nint8: {calibrate: {}, samples: 5}",
        [
            (
                3,
                23,
                "unknown key 'samples' (it belongs under 'int8.calibrate' or under 'int8.implicit.calibrate'",
            )
        ],
    ),
    "scales a number": (
        "model: a\ninputs: a\nint8: {scales: 0.1}",
        [(3, 16, "scales: expected a file's path, found 0.1")],
    ),
    "exclude text": (
        "model: a\ninputs: a\nint8: {scales: s, exclude: /a/Conv}",
        [(3, 28, "write ['/a/Conv']")],
    ),
    "exclude numbers": (
        "model: a\ninputs: a\nint8: {scales: s, exclude: [1]}",
        [(3, 29, "exclude: expected text, found 1")],
    ),
    "method typo": (
        "model: a\ninputs: a\nint8: {calibrate: {method: entrpy}}",
        [(3, 28, "method: expected one of minmax, entropy,|found 'entrpy' (did you mean 'entropy'?)")],
    ),
    "method a list": ("model: a\ninputs: a\nint8: {calibrate: {method: [mse]}}", [(3, 28, "found a list")]),
    "percentile out of range": (
        "model: a\ninputs: a\nint8: {calibrate: {method: percentile, percentile: 0.999}}",
        [(3, 52, "percentile: expected a percentile greater than 50 and at most 100, found 0.999")],
    ),
    "percentile without its method": (
        "model: a\ninputs: a\nint8: {calibrate: {percentile: 99.9}}",
        [(3, 20, "'percentile' has no effect on method entropy; remove it, or set 'method: percentile'")],
    ),
    "top_k without its method": (
        "model: a\ninputs: a\nint8: {calibrate: {method: mse, top_k: 3}}",
        [(3, 33, "'top_k' has no effect on method mse; remove it, or set 'method: topk'")],
    ),
    "calibration data": (
        "model: a\ninputs: a\nint8: {calibrate: {data: 3}}",
        [(3, 26, "data: expected a file, a folder,|found 3")],
    ),
    "implicit of nothing": (
        "model: a\ninputs: a\nint8: {implicit: {}}",
        [(3, 18, "implicit: 'calibrate: {}' or 'cache: FILE' must say where the ranges come from")],
    ),
    "implicit text": (
        "model: a\ninputs: a\nint8: {implicit: entropy2}",
        [(3, 18, "implicit: expected a mapping with 'calibrate', 'cache' or both, found 'entropy2'")],
    ),
    "implicit typo": (
        "model: a\ninputs: a\nint8: {implicit: {cach: c}}",
        [(3, 19, "unknown key 'cach' (did you mean 'cache'?)")],
    ),
    "implicit too shallow": (
        "model: a\ninputs: a\nint8: {implicit: {cache: c, data: c.npz}}",
        [(3, 29, "unknown key 'data' (it belongs under 'int8.implicit.calibrate')")],
    ),
    "implicit algorithm": (
        "model: a\ninputs: a\nint8: {implicit: {calibrate: {algorithm: entropy3}}}",
        [(3, 42, "algorithm: expected one of entropy2,|'entropy3' (did you mean 'entropy'?)")],
    ),
    "implicit method": (
        "model: a\ninputs: a\nint8: {implicit: {calibrate: {method: entropy2}}}",
        [(3, 31, "unknown key 'method' (it belongs under 'int8.calibrate')")],
    ),
    "implicit samples": (
        "model: a\ninputs: a\nint8: {implicit: {calibrate: {samples: 0}}}",
        [(3, 40, "samples: expected a whole number of at least 1, found 0")],
    ),
    "implicit calibrate text": (
        "model: a\ninputs: a\nint8: {implicit: {calibrate: c.npz}}",
        [(3, 30, "calibrate: expected a mapping like {data: calib.npz, algorithm:|found 'c.npz'")],
    ),
    "implicit data without function": (
        "model: a\ninputs: a\nint8: {implicit: {calibrate: {data: load.py}}}",
        [(3, 37, "data: expected a function in load.py, as 'load.py:function'")],
    ),
    "implicit and scales": (
        "model: a\ninputs: a\nint8: {implicit: {cache: c}, scales: s}",
        [(3, 30, "'scales' and 'implicit' exclude each other: keep one")],
    ),
    "algorithm without implicit": (
        "model: a\ninputs: a\nint8: {calibrate: {algorithm: minmax}}",
        [(3, 20, "unknown key 'algorithm' (it belongs under 'int8.implicit.calibrate')")],
    ),
    "engine a number": (
        "model: a\ninputs: a\nint8: {engine: 8}",
        [(3, 16, "engine: expected a file's path, found 8")],
    ),
    "engine typo": (
        "model: a\ninputs: a\nint8: {engin: e}",
        [(3, 8, "unknown key 'engin' (did you mean 'engine'?)")],
    ),
    "engine and calibrate": (
        "model: a\ninputs: a\nint8: {engine: e, calibrate: {}}",
        [(3, 19, "'calibrate' and 'engine' exclude each other: keep one")],
    ),
    "exclude beside an engine": (
        "model: a\ninputs: a\nint8: {engine: e, exclude: [/a]}",
        [(3, 19, "'exclude' has no effect on an engine that is built already; remove it")],
    ),
    "exclude beside implicit": (
        "model: a\ninputs: a\nint8: {implicit: {cache: c}, exclude: [/a]}",
        [(3, 30, "'exclude' has no effect on implicit quantization,|use 'calibrate'")],
    ),
    "exclude of the defaults beside an engine": (
        "defaults: {model: a, inputs: a, int8: {scales: s, exclude: [/a]}}\n"
        "cases: [{name: a, int8: {engine: e}}]",
        [(1, 51, "'exclude' has no effect on an engine that is built already; remove it")],
    ),
    "a plan for TensorRT's own quantization": (
        "model: a\ninputs: a\nint8: {implicit: {calibrate: {}}}\nplan: plan.yaml",
        [(4, 1, "'plan' has no effect on 'int8: {implicit: ...}': use 'int8: {calibrate: {}}'")],
    ),
    "a plan for an engine": (
        "model: a\ninputs: a\nint8: {engine: e}\nplan: plan.yaml",
        [(4, 1, "'plan' has no effect on 'int8: {engine: ...}': name the model it was made from")],
    ),
    "cases no list": (
        "cases: {a: 1}",
        [(1, 8, "cases: expected a list of cases, each '- name: ...', found a mapping")],
    ),
    "cases empty list": ("cases: []", [(1, 8, "cases: expected a list of cases")]),
    "cases empty": ("cases:\n", [(1, 1, "'cases' has no value")]),
    "cases of text": ("cases: [a]", [(1, 9, "cases: expected a mapping like {name: resnet50,|found 'a'")]),
    "cases null item": ("cases:\n-\n", [(2, 2, "cases: expected a mapping|found nothing")]),
    "case without name": (
        f"defaults: {{{MINIMAL.replace(chr(10), ',')}}}\ncases:\n- batch: 1",
        [(3, 3, "'name' is missing: add 'name: resnet50'")],
    ),
    "two cases of a name": (
        "defaults: {model: a, inputs: a, int8: {scales: s}}\ncases:\n- name: x\n- name: x",
        [(4, 9, "name: 'x' is taken by the case at line 3; names are unique in a file")],
    ),
    "a case twice by alias": (
        "cases:\n- &c {name: x, model: a, inputs: a, int8: {scales: s}}\n- *c",
        [(2, 13, "name: 'x' is taken by the case at line 2")],
    ),
    "defaults text": (
        "defaults: x\ncases: [{name: a}]",
        [(1, 11, "defaults: expected a mapping of what the cases share, found 'x'")],
    ),
    "defaults with a name": (
        "defaults: {name: n, model: a, inputs: a, int8: {scales: s}}\ncases: [{name: a}]",
        [(1, 12, "'name' cannot be shared; give each case a name of its own")],
    ),
    "defaults wrong, told once": (
        "defaults: {model: a, inputs: a, int8: {scales: s}, batch: x}\ncases:\n- name: a\n- name: b\n",
        [(1, 59, "batch: expected a whole number of at least 1, found 'x'")],
    ),
    "defaults wrong, though never used": (
        "defaults: {model: a, inputs: a, int8: {scales: s}, batch: 0}\ncases:\n- {name: a, batch: 1}\n",
        [(1, 59, "batch: expected a whole number of at least 1, found 0")],
    ),
    "defaults typo": (
        "default: {model: a, inputs: a, int8: {scales: s}}\ncases: [{name: a}]",
        [(1, 1, "unknown key 'default' (did you mean 'defaults'?)")],
    ),
    "foreign key beside cases": (
        "zebra: 1\ncases: [{name: a}]",
        [(1, 1, "unknown key 'zebra' (known here: defaults, cases)")],
    ),
    "name beside cases": (
        "name: n\ncases: [{name: a, model: a, inputs: a, int8: {scales: s}}]",
        [(1, 1, "'name' stands beside 'cases:'; give each case a name of its own")],
    ),
    "a case lacks what defaults lack": (
        "defaults: {model: a, inputs: a}\ncases:\n- name: a\n- {name: b, int8: {scales: s}}",
        [(3, 3, "'int8' is missing")],
    ),
    "several mistakes in order": (
        "criteria: [{cosine: 2}]\nmodel: 3\nzebra: 1\ninputs: a\nint8: {scales: s}\n",
        [(1, 21, "cosine:"), (2, 8, "model:"), (3, 1, "unknown key 'zebra'")],
    ),
    "columns count characters": (
        "é: 1\n" + MINIMAL + "marks: ['é𝔘', a-b]\n",
        [(1, 1, "unknown key 'é'"), (5, 9, "'é𝔘'"), (5, 15, "'a-b'")],
    ),
    "windows line ends": (MINIMAL.replace("\n", "\r\n") + "batch: 0\r\n", [(4, 8, "batch:")]),
    "syntax: tab": ("model: a\nint8:\n\tscales: s", [(3, 1, "not valid YAML: a tab; indent with spaces")]),
    "syntax: open list": (
        "model: a\nmarks: [a, b\n",
        [(2, 8, "not valid YAML: the '[' that opens here lacks a ',' or its ']'")],
    ),
    "syntax: open mapping": ("int8: {scales: s\n", [(1, 7, "not valid YAML: the '{' that opens here lacks")]),
    "syntax: open quote": ("model: 'a\ninputs: b\n", [(1, 8, "the quote that opens here is never closed")]),
    "syntax: windows path": (
        'model: "C:\\models"',
        [(1, 8, "a backslash is special|use single quotes, or '/' in paths")],
    ),
    "syntax: two colons": (
        "model: a: b",
        [(1, 9, "not valid YAML: a ':' cannot stand here; check the indentation, or quote")],
    ),
    "syntax: indentation": (
        "model: a\n  inputs: b",
        [(2, 9, "not valid YAML: a ':' cannot stand here; check the indentation")],
    ),
    "syntax: list in mapping": (
        "model: a\n- b",
        [(2, 1, "this line does not fit the lines above|check its indentation")],
    ),
    "syntax: reserved": (
        "model: @a",
        [(1, 8, "not valid YAML: text cannot start with '@'; put it in quotes")],
    ),
    "syntax: no colon": (
        "model: a\ninputs\nint8: b",
        [(3, 1, "a key without its ':' just above; write 'key: value'")],
    ),
    "syntax: star": ("model: *", [(1, 9, "not valid YAML: ")]),
    "nested too deep": ("model: " + "[" * 40, [(1, 39, "nested more than 32 levels deep")]),
    "nested far too deep": ("[" * 900, [(1, 33, "nested more than 32 levels deep")]),
    "nested too deep by alias": (
        "a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a" + "]" * 20,
        [(2, 24, "nested more than 32 levels deep")],
    ),
    "a billion laughs": (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        [(5, 20, "more than 50000 values, aliases written out")],
    ),
    "control character": (
        "model: a\nname: a\x07b",
        [(2, 8, "control character U+0007 is not allowed in YAML; remove it")],
    ),
    "null character": ("model: a\0", [(1, 9, "control character U+0000")]),
}

# Files that are not even text.
BYTES = {
    "latin-1": (
        "model: a\nname: café".encode("latin-1"),
        [(2, 10, "byte 0xe9 is not UTF-8; save the file as UTF-8")],
    ),
    "binary": (b"\x89PNG\r\n\x1a\n", [(1, 1, "byte 0x89 is not UTF-8")]),
    "utf-16": (MINIMAL.encode("utf-16"), [(1, 1, "the file is UTF-16; save it as UTF-8")]),
    "utf-16 big": (
        b"\xfe\xff" + MINIMAL.encode("utf-16-be"),
        [(1, 1, "the file is UTF-16; save it as UTF-8")],
    ),
    "byte order mark": (b"\xef\xbb\xbfzebra: 1\n" + MINIMAL.encode(), [(1, 1, "unknown key 'zebra'")]),
    "cut in a character": (b"model: \xc3", [(1, 8, "byte 0xc3 is not UTF-8")]),
    "surrogate in bytes": (b"model: \xed\xa0\x80", [(1, 8, "byte 0xed is not UTF-8")]),
    "too large": (b"# " + b"x" * (1 << 20), [(1, 1, "the file is larger than 1 MiB, too large for a spec")]),
}

ALL = (
    {f"added: {k}": ((MINIMAL + text).encode(), expected) for k, (text, expected) in ADDED.items()}
    | {k: (text.encode(), expected) for k, (text, expected) in FILES.items()}
    | BYTES
)
