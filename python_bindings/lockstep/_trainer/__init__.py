"""`Trainer`: training, evaluating and predicting with one object."""
