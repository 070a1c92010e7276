"""Benchmark data made by rule: seeded generators, without a model."""
