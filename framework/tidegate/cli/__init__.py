"""The command line: each command parses its arguments, calls one function and prints the answer.

The package holds no cluster logic and keeps no state. The modules that define the commands import
only typer and other light modules at the top, so that help appears at once. A command imports
heavier modules when it runs.
"""
