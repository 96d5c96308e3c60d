"""Suites against a running `lockstep serve`."""
