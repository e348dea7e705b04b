"""How the catalog of instance types is made from EC2's own answers."""
