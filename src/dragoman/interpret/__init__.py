"""Interpretability: record or replace any quantity of the paper while a model runs."""
