"""What makes a step fast and changes nothing about what it computes: kernels, casts, side streams.
Modules here import only torch.

A reader of the networks may skip this folder. To them, `Conv` is a convolution, `Norm` is
relu(batch norm(x) + plus), `at_once(x, f, g)` is (f(x), g(x)), `call_lowered(net, x, view)` is
(view(x), net(view(x))), `with_lowered_weights(net, x)` is net(x), `laid_out(x)` is x, and `Aside`
does what it is given. On a GPU, in bfloat16 and in captured steps, the same is
computed in fewer launches, beside each other, or from memory in a better order; the tests compare
each with the plain way.
"""

from onepass.nets.fast.aside import Aside
from onepass.nets.fast.conv import Conv
from onepass.nets.fast.layout import laid_out
from onepass.nets.fast.lower import call_lowered, with_lowered_weights
from onepass.nets.fast.norm import Norm, compile_kernels
from onepass.nets.fast.parallel import at_once

__all__ = [
    "Aside",
    "Conv",
    "Norm",
    "at_once",
    "call_lowered",
    "compile_kernels",
    "laid_out",
    "with_lowered_weights",
]
