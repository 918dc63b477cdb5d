"""Tools beside the flow of data: the contract's checks, benchmarks, a counter of forward passes and
the classification of image files. They may import everything below the command line but sweeps,
searches and the paper."""
