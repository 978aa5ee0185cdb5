"""What tests are written with: fakes of every port and drivers of a pipeline or one function.

It is public, because users test with it too. It never opens a socket, a file or a process.
"""
