"""Planted greens and healthy cases: whether `pytest --int8acc` can be green and wrong, or red without need.

An entry is one function that writes a small project and returns what is true of it:

    @planted("d", "tokens")                        # the class of lie, as in entry.py; the kind of network
    def zeros_and_top5(project: Project) -> Truth:
        net = nets.tagger()                        # any model, by any builder, from seeds
        broken = quantize.dead(net.model, net.calibration, "logits")
        project.model(net.model)                   # model.onnx; also .arrays, .text (metrics.py), .spec
        project.model(broken, "int8.onnx")
        project.arrays("inputs.npz", **net.feed)
        project.spec(int8={"model": "int8.onnx"}, criteria=[{"output": "logits", "top5_agreement": 0.8}])
        return Truth("token accuracy", net.metric(net.outputs()), net.metric(net.outputs(broken)))

Variants go to ours.py or stranger.py (`@planted`) and to healthy.py (`@healthy("tokens")`); nothing else
changes. `Truth` comes from plain ONNX Runtime and numpy, never from the plugin. The command fails where the
metric of a planted entry moves by less than 5 %, or that of a healthy one by 0.5 % or more. Keep far from
every limit, import nothing from pytest_int8acc. To run one: `python -m benchmarks.greens --only NAME --show`.
"""
