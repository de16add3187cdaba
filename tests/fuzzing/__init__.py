"""Random calls, random files and every shader there is, each in a child process: what may come of them, and what not.

`child` runs a task where it may hang or die, `calls` makes calls and `verdict` judges what came of them, `files` makes
files that lie, and `shaders` collects the WGSL of an op's every choice. tests/fuzz.py is the long form, the suite runs
the short one.
"""
