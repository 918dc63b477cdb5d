"""Pure functions on tensors: losses, augmentation, views and the measures of gradient imbalance.
They import only `base`."""
