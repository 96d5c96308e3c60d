"""Suites that run `lockstep serve` and llama.cpp side by side."""
