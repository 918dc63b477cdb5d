"""What makes a step fast and changes nothing about what it computes: kernels, casts, side streams.

A reader of the networks may skip this folder. To them, `Conv` is a convolution, `Norm` is
relu(batch norm(x) + plus), `at_once(x, f, g)` is (f(x), g(x)), `call_lowered(net, x, view)` is
net(view(x)) and `laid_out(x)` is x. On a GPU, in bfloat16 and in captured steps, the same is
computed in fewer launches, beside each other, or from memory in a better order; the tests compare
each with the plain way.
"""

from onepass.nets.fast.conv import Conv
from onepass.nets.fast.layout import laid_out
from onepass.nets.fast.lower import call_lowered
from onepass.nets.fast.norm import Norm, compile_kernels
from onepass.nets.fast.parallel import at_once

__all__ = ["Conv", "Norm", "at_once", "call_lowered", "compile_kernels", "laid_out"]
