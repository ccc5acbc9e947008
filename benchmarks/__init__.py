"""Measurements that docs/benchmarks.md reports; nothing here is installed with the plugin."""
