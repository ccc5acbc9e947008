"""Results of cases, for reports."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_int8acc.results import CaseResult, LineFit, OutputResult, Score

ANY = st.floats(allow_nan=True, allow_infinity=True)


FINITE = st.floats(-1e9, 1e9)


SCORES = st.builds(
    Score,
    st.sampled_from(["logits", "file.py:top1"]),
    st.sampled_from(["cosine", "sqnr_db", "max_abs"]),
    ANY,
    limit=st.none() | FINITE,
    bound=st.sampled_from(["min", "max"]),
    noise=st.none() | ANY,
    baseline=st.none() | ANY,
    note=st.text(max_size=5),
)


MEANINGS = st.sampled_from([(), ("constant",), ("small",), ("large", "shifted"), ("shifted",)])


FITS = st.builds(LineFit, ANY, ANY, ANY, MEANINGS, ANY, FINITE.filter(bool))


OUTPUTS = st.builds(
    OutputResult,
    st.just("logits"),
    st.just("float32"),
    st.just("(2, 10)"),
    st.lists(SCORES, max_size=4).map(tuple),
    st.none() | FITS,
    st.none() | st.integers(0, 9),
    st.sampled_from(["", "NaN in 3 of 20 elements"]),
)


RESULTS = st.builds(
    CaseResult,
    name=st.just("digits"),
    spec=st.just("digits.int8acc.yaml"),
    samples=st.integers(1, 9),
    data=st.just("val.npz"),
    baseline=st.just("FP16"),
    candidate=st.just("INT8"),
    backend=st.just("ONNX Runtime 1.31.1, CPU, exact"),
    outputs=st.lists(OUTPUTS, min_size=1, max_size=3).map(tuple),
    metrics=st.lists(SCORES, max_size=2).map(tuple),
    notes=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)
