"""The name scripts import: `from fabric_model import FabricModel`."""

from pyedt.fabric_model import FabricModel

__all__ = ["FabricModel"]
