"""The costliest functions of the memory once more, in C++, for the processor they run on.

A chunk's matrices fit into a core's cache. torch runs one product or one sum over them at a time,
each through memory again, with a library made for matrices ten times as long; a kernel here does a
whole function of the files above, or a whole text, for one row and head while it is in cache. Those
files stay the definition: a kernel is found through `OwnBackward.native`, or where `served` says
so, and tests compare both in float64.   docs/kernels.md
"""
