"""What frameworks make of a deployment's services: a module for each that does not run the command lines as they are.

`module` of a framework's row in catalog/frameworks.yaml names its module here.
"""
