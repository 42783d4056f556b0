"""Kernels import this before redhareapi."""

__version__ = "2.3.7"
