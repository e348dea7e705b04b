"""Other load drivers behind `blueprint validate --driver NAME`: they send our plan, and our report judges the result.

A driver is a module here with an object `DRIVER`, and `requirements/drivers/NAME.in` for an environment of its own.
"""
