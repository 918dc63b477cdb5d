"""Several runs at a time in worker processes: the pool, its slots and workers, and how they share
RAM and GPUs. Modules here import what `executors` imports."""
