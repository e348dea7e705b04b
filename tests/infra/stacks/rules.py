"""The product's own rules, by the name that tests know them by."""

from infra.stacks.rules import empty_structs as empty_structs
from infra.stacks.rules import open_doors as open_doors
from infra.stacks.rules import wildcards as wildcards
