"""Learners: the contract of every method and the registry of methods, the trainer inside a learner,
replay, copies of the network, self-distillation, prediction and checkpoints. Modules here import
`memory`, `nets`, `functional` and `base`, never a stream or a run.
"""
