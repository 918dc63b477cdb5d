"""Learners: the contract of every method, the trainer inside it, replay, copies of the network,
self-distillation, prediction and checkpoints. Modules here import `memory`, `nets`, `functional`
and `base`, never a stream or a run.
"""
