"""Faster kernels, casts and streams, which change nothing about what a step computes. Modules here
import only torch.

A reader of the networks may skip this folder and read each name as its plain counterpart:

    Conv                                     a convolution
    Norm                                     relu(batch norm(x) + plus)
    SideStream().start(f, *tensors)          f()
    compile_kernels(net)                     nothing
    in_parallel(x, f, g)                     (f(x), g(x))
    forward_in_bf16(net, x)                  net(x)
    view_and_forward_in_bf16(net, x, view)   (view(x), net(view(x)))
    to_channels_last(x)                      x

On a GPU, in bfloat16 and in captured steps they compute the same values with fewer kernel launches,
on several streams, or from a faster memory layout. The tests compare each with its counterpart.
"""

from onepass.nets.fast.bf16_weights import forward_in_bf16, view_and_forward_in_bf16
from onepass.nets.fast.channels_last import to_channels_last
from onepass.nets.fast.conv import Conv
from onepass.nets.fast.norm import Norm, compile_kernels
from onepass.nets.fast.parallel import in_parallel
from onepass.nets.fast.side_stream import SideStream

__all__ = [
    "Conv",
    "Norm",
    "SideStream",
    "compile_kernels",
    "forward_in_bf16",
    "in_parallel",
    "to_channels_last",
    "view_and_forward_in_bf16",
]
