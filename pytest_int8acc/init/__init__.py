"""``pytest --int8acc-init MODEL``: writes a first spec for a model."""

from pytest_int8acc.init.write import run, write_spec

__all__ = ["run", "write_spec"]
