"""Trains a Keras model, exported by tf2onnx, in Lockstep and in Keras, and compares the losses.

python examples/frameworks/keras_model.py      # docs/frameworks.md says what it needs
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from comparison import RATE, STEPS, compare, data, losses
from keras import layers


def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    module = keras.Sequential(
        [
            keras.Input((12, 12, 3), name="image"),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.LayerNormalization(),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 1, activation="swish"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    # TensorFlow's optimizer removes additions of zero and products with one, and so would remove parameters with these
    # initial values.
    random = np.random.default_rng(1)
    for variable in module.trainable_variables:
        variable.assign(variable + 0.1 * random.normal(size=variable.shape))
    return module


def export(module: keras.Model, shape: tuple[int, ...]) -> object:
    """Exports the model as a function with a signature, as tf2onnx's from_keras does not support Keras 3."""
    signature = [tf.TensorSpec((None, *shape), tf.float32, name="image")]
    exported, _ = tf2onnx.convert.from_function(tf.function(module, input_signature=signature), signature, opset=18)
    return exported


def own_losses(module: keras.Model, images: np.ndarray, labels: np.ndarray) -> list[float]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    module.compile(optimizer=keras.optimizers.SGD(RATE), loss=loss)
    return [float(module.train_on_batch(images, labels)) for _ in range(STEPS)]


def main() -> None:
    module = model()
    images, labels = data((12, 12, 3), 10)
    found = losses(export(module, (12, 12, 3)), {"image": images}, labels)
    compare("keras", lambda: own_losses(module, images, labels), found)


if __name__ == "__main__":
    main()
