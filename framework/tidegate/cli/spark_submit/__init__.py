"""The file that `spark-submit` runs. It is alone in its folder, because Python looks for modules in
the folder of a program first. Another module there would hide a user's module of the same name.
"""
