"""Several runs at a time, each in a process of its own: the pool, its slots and workers, and what
they share of memory and of GPUs. Modules here import what `executors` imports."""
