"""Kinds of work: a package each, found by the name in `kind:` of blueprint.yaml."""
