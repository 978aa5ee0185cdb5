"""The command line: each command parses its words, calls one function below and prints the answer.

It holds no logic of the cluster and keeps no state. Only typer is imported at the top of its
modules, so that help appears at once; whatever costs more is imported by the command that needs it.
"""
