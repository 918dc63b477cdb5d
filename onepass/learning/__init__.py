"""What learns and what can be saved: the learner (the contract of every method), the trainer inside
it, the operations of a step, replay, copies of the network, self-distillation, prediction and
checkpoints. Modules here import `memory`, `nets`, `functional` and `base`, never a stream or a run.
"""
