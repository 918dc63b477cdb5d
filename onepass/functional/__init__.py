"""Functions on tensors: losses, augmentation, views and measures of gradient imbalance. They import
only `base`."""
