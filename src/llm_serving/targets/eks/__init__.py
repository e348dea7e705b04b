"""The target `eks`: the Helm chart with rendered values."""
