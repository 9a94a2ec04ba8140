"""Step 1: LeNet on one machine. Run: .venv/bin/python examples/tutorial/one_machine.py"""

from __future__ import annotations

from common import BATCH, LOSS, MODEL, OPTIMIZER, accuracy, parse_arguments, say, training_set

import lockstep as ls


def main() -> None:
    arguments = parse_arguments("Trains LeNet in one process.")
    images, labels = training_set(arguments)

    model = ls.load_onnx(MODEL, dims={"batch": BATCH})
    step = ls.train_step(model, LOSS, OPTIMIZER)  # loss, gradients and the optimizer's update: one program
    exe = ls.compile(step)
    for epoch in range(arguments.epochs):
        for image, label in ls.data.batches(images, labels, size=BATCH, seed=epoch):
            loss = exe(image=image, label=label)["loss"]
        say(0, f"epoch {epoch + 1}: loss {float(loss):.4f}, accuracy {accuracy(exe.state, arguments):.4f}")


if __name__ == "__main__":
    main()
