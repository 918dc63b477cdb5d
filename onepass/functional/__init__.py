"""Functions on tensors: losses, augmentation, views and measures of gradient imbalance. From the
rest of onepass, they import only `base`."""
