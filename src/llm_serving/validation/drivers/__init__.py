"""Other load drivers behind `blueprint validate --driver NAME`: they send our plan, and our report judges the result.

A driver is a row of drivers.yaml, a module here of the same name, which builds its command and reads its results, and
`requirements/drivers/NAME.in` for an environment of its own.
"""
