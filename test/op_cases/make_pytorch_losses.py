"""Writes pytorch_losses.inc: losses of given predictions and inputs, with the f64 values and gradients that PyTorch
computes.

    python make_pytorch_losses.py > pytorch_losses.inc     # with torch 2.13.0

The batch is 6, which divides among 1, 2 and 3 ranks. The numbers come from the corresponding function of torch.
"""

import torch
import torch.nn.functional as F
from make_pytorch_expected import INF, random, typed, write

# Rows of weight 0 are padding; rank 0 of 3 has no other rows. The number of elements of weight 0 differs between ranks.
SAMPLE_WEIGHTS = torch.tensor([0, 0, 1, 0.5, 2, 0]).double()


def elements():
    """Losses of tensors of equal shapes: at kinks, at ties, and far from the target."""
    below, above = [-40, -3, -0.5, 0, 0.5, 2], [1, 3, 40, 0, 0, -1]
    z = torch.tensor([below, above]).double().T.contiguous()
    probabilities = torch.tensor([[0, 1, 0.25, 0, 1, 0], [1, 0, 0.75, 1, 0.5, 0.5]]).double().T.contiguous()
    wanted = torch.tensor([[-41, -3.25, 0, 0, 1.5, 2], [1, 2.5, 42, -0.5, 0.5, 0]]).double().T.contiguous()
    signs = torch.tensor([[1, -1, -1, -1, 1, 1], [-1, -1, 1, -1, 1, -1]]).double().T.contiguous()
    for name, target, options, function in [
        ("mean_squared_error", wanted, {}, F.mse_loss),
        ("l1", wanted, {}, F.l1_loss),
        ("huber", wanted, {}, F.huber_loss),
        ("huber", wanted, {"delta": 0.5}, F.huber_loss),
        ("smooth_l1", wanted, {}, F.smooth_l1_loss),
        ("smooth_l1", wanted, {"beta": 0.5}, F.smooth_l1_loss),
        ("smooth_l1", wanted, {"beta": 0.0}, F.smooth_l1_loss),
        ("hinge_embedding", signs, {}, F.hinge_embedding_loss),
        ("hinge_embedding", signs, {"margin": 0.5}, F.hinge_embedding_loss),
        ("binary_cross_entropy_with_logits", probabilities, {}, F.binary_cross_entropy_with_logits),
        ("binary_cross_entropy_with_logits", probabilities, {"pos_weight": [3.0]}, binary_cross_entropy),
        ("binary_cross_entropy_with_logits", probabilities, {"pos_weight": [0.5, 4.0]}, binary_cross_entropy),
    ]:
        loss_rows(name, {"z": z}, {"target": target}, options, function)
    # For images the mean is over all positions, and the weight of a sample applies to each of its elements.
    image, of_image = random(6, 2, 3), probabilities[:, :, None].expand(6, 2, 3).contiguous()
    loss_rows("l1", {"z": image}, {"target": of_image}, {}, F.l1_loss)
    weights = {"pos_weight": [0.5, 4.0]}
    loss_rows("binary_cross_entropy_with_logits", {"z": image}, {"target": of_image}, weights, binary_cross_entropy)
    z, target = z[:, 0].contiguous(), probabilities[:, 0].contiguous()
    weights = {"pos_weight": [3.0]}
    loss_rows("binary_cross_entropy_with_logits", {"z": z}, {"target": target}, weights, binary_cross_entropy)


def binary_cross_entropy(z, target, pos_weight, reduction):
    weights = torch.tensor(pos_weight).double().reshape(-1, *[1] * (z.dim() - 2))
    return F.binary_cross_entropy_with_logits(z, target, pos_weight=weights, reduction=reduction)


def divergences():
    """Also for probabilities that are 0."""
    log_q = F.log_softmax(random(6, 3, 2), 1).detach()
    p = F.softmax(random(6, 3, 2), 1)
    p[1, 2, 0] = p[4, 0, 1] = 0
    for target, options in [(p, {}), ((p + 0.125).log(), {"log_target": True})]:
        loss_rows("kl_div", {"z": log_q}, {"target": target}, options, F.kl_div)
        loss_row(
            "kl_div",
            {"z": log_q},
            {"target": target},
            {**options, "reduction": "batchmean"},
            lambda z, y, options=options: F.kl_div(z, y, reduction="batchmean", **options),
        )
        loss_row(
            "kl_div",
            {"z": log_q},
            {"target": target, "weight": SAMPLE_WEIGHTS},
            {**options, "reduction": "batchmean", "sample_weight": "weight"},
            lambda z, y, w, options=options: (
                (F.kl_div(z, y, reduction="none", **options).flatten(1).sum(1) * w).sum() / w.sum()
            ),
        )


def labels_and_probabilities():
    """The number of ignored labels differs between ranks; rank 0 of 3 may have only ignored labels."""
    weights = [0.5, 2.0, 1.0, 0.25]
    for shape in [(6, 4), (6, 4, 2)]:
        z, labels = random(*shape), torch.randint(0, 4, (6, *shape[2:]))
        some = labels.clone()
        some[torch.rand(labels.shape) < 0.4] = -100
        some[:2] = -100
        some[4] = labels[4]
        zero = torch.where(labels == 0, 3, labels)
        soft = F.softmax(random(*shape), 1)
        log_z = F.log_softmax(z, 1).detach()
        for target, options in [
            (labels, {}),
            (some, {"ignore_index": -100}),
            (zero, {"ignore_index": 3}),
            (labels, {"class_weights": weights}),
            (some, {"class_weights": weights, "ignore_index": -100}),
        ]:
            loss_rows("softmax_cross_entropy", {"z": z}, {"target": target}, options, cross_entropy, counts_of_labels)
            loss_rows("nll", {"z": log_z}, {"target": target}, options, nll, counts_of_labels)
            options = {**options, "label_smoothing": 0.25}
            loss_rows("softmax_cross_entropy", {"z": z}, {"target": target}, options, cross_entropy, counts_of_labels)
        for options in [{}, {"class_weights": weights}, {"label_smoothing": 0.25, "class_weights": weights}]:
            options = {**options, "soft_targets": True}
            loss_rows("softmax_cross_entropy", {"z": z}, {"target": soft}, options, cross_entropy)
    large = random(6, 4) * 400
    large[1, 2] = large[3, 0] = -INF
    labels = torch.tensor([1, 3, 0, 2, 2, 1])
    loss_rows("softmax_cross_entropy", {"z": large}, {"target": labels}, {"class_weights": weights}, cross_entropy,
              counts_of_labels)  # fmt: skip
    labels[1] = 2  # its probability is 0, but it is ignored
    labels[5] = large[5].argmin()
    row = {"ignore_index": 2, "class_weights": weights}
    loss_rows("softmax_cross_entropy", {"z": large}, {"target": labels}, row, cross_entropy, counts_of_labels)
    ignored = torch.full((6,), 3)
    for name, function in [("softmax_cross_entropy", cross_entropy), ("nll", nll)]:
        for options in [{"ignore_index": 3}, {"ignore_index": 3, "class_weights": weights}]:
            loss_row(f"{name}", {"z": random(6, 4)}, {"target": ignored}, options,
                     lambda z, y, function=function, options=options: function(z, y, reduction="mean", **options),
                     note=", nothing counts")  # fmt: skip


def cross_entropy(z, target, reduction, class_weights=None, soft_targets=False, **options):
    weights = None if class_weights is None else torch.tensor(class_weights).double()
    return F.cross_entropy(z, target, weight=weights, reduction=reduction, **options)


def nll(z, target, reduction, class_weights=None, **options):
    weights = None if class_weights is None else torch.tensor(class_weights).double()
    return F.nll_loss(z, target, weight=weights, reduction=reduction, **options)


def counts_of_labels(target, class_weights=None, ignore_index=None, **options):
    counts = torch.ones(target.shape).double()
    known = target if ignore_index is None else torch.where(target == ignore_index, 0, target)
    if class_weights is not None:
        counts = torch.tensor(class_weights).double()[known]
    return counts if ignore_index is None else torch.where(target == ignore_index, 0.0, counts)


def embeddings():
    """Losses of several predictions."""
    signs = torch.tensor([1, -1, -1, 1, 1, -1]).double()
    rows = {"x1": random(6, 5), "x2": random(6, 5)}
    rows["x2"][1] = rows["x1"][1] * 2
    rows["x1"][3] = 0
    for options in [{}, {"margin": 0.25}]:
        loss_rows("cosine_embedding", rows, {"target": signs}, options, F.cosine_embedding_loss)
    for shape in [(6, 4), (6, 2, 3)]:
        rows = {"anchor": random(*shape), "positive": random(*shape), "negative": random(*shape)}
        rows["positive"][2] = rows["anchor"][2]
        for options in [{}, {"margin": 3.0, "eps": 0.0}]:
            loss_rows("triplet_margin", rows, {}, options, F.triplet_margin_loss)


def sequences():
    """PyTorch's gradient of ctc_loss is the one behind a log_softmax. Samples without labels, of other lengths, and
    with repeated labels, which need a blank between them; -1 pads.
    """
    z = random(6, 5, 4)
    target = torch.tensor([[1, 2, 3], [2, 2, -1], [-1, -1, -1], [3, 1, 3], [1, -1, -1], [2, 3, 3]])
    lengths = {"input_lengths": torch.tensor([5, 4, 3, 5, 1, 4]), "target_lengths": torch.tensor([3, 2, 0, 3, 1, 3])}
    loss_rows("ctc", {"z": z}, {"target": target, **lengths}, {"max_target_length": 3}, ctc, log_softmax=True)
    full = torch.cat([target, torch.full((6, 2), -1)], 1)
    loss_rows("ctc", {"z": z}, {"target": full, **lengths}, {}, ctc, log_softmax=True)
    options = {"max_target_length": 3, "blank": 2}
    other = torch.where(target == 2, 0, target)
    loss_rows("ctc", {"z": z}, {"target": other, **lengths}, options, ctc, log_softmax=True)
    options = {"max_target_length": 3, "zero_infinity": True}
    short = {**lengths, "input_lengths": torch.tensor([5, 2, 3, 5, 0, 3])}  # too short for samples 1, 4 and 5
    loss_rows("ctc", {"z": z}, {"target": target, **short}, options, ctc, log_softmax=True)


def ctc(z, target, input_lengths, target_lengths, reduction, max_target_length=None, **options):
    given = (z.transpose(0, 1), target.clamp_min(0), input_lengths, target_lengths)
    if reduction != "none":
        return F.ctc_loss(*given, reduction=reduction, **options)
    return F.ctc_loss(*given, reduction="none", **options) / target_lengths.clamp_min(1)  # as in ctc_loss's own mean


def leaf(tensor):
    return tensor.clone().requires_grad_()


def loss_rows(name, predictions, inputs, options, function, counts=None, log_softmax=False):
    """Writes the rows of a loss. function(*predictions, *inputs, reduction=..., **options) is torch's function.
    counts(*inputs, **options) returns the weight of each element in the mean, if it is not 1.
    """
    for reduction in ["mean", "sum"]:
        chosen = options if reduction == "mean" else {**options, "reduction": reduction}
        loss_row(name, predictions, inputs, chosen,
                 lambda *tensors, reduction=reduction: function(*tensors, reduction=reduction, **options), log_softmax)  # fmt: skip

    def weighted(*tensors, is_mean=True):
        """Leaves out the elements of weight 0, of which nothing may reach the sums."""
        *given, weight = tensors
        unreduced = function(*given, reduction="none", **options)
        element = weight if weight.dim() == unreduced.dim() else weight.reshape(-1, *[1] * (unreduced.dim() - 1))
        element = element.expand(unreduced.shape)
        count = counts(*given[len(predictions) :], **options) if counts else torch.ones_like(element)
        kept = element != 0
        total = (unreduced[kept] * element[kept]).sum()
        return total / (count[kept] * element[kept]).sum() if is_mean else total

    elements = function(*predictions.values(), *inputs.values(), reduction="none", **options)
    some = torch.where(torch.rand(elements.shape) < 0.4, 0.0, torch.randint(1, 9, elements.shape) / 4).double()
    some[0] = 0
    some.reshape(-1)[-1] = 1
    for option, weight in [("sample_weight", SAMPLE_WEIGHTS), ("element_weight", some)]:
        chosen = {**options, option: "weight"}
        loss_row(name, predictions, {**inputs, "weight": weight}, chosen, weighted, log_softmax)
    if name == "ctc":
        return  # the elements of its sum differ from those of its mean
    chosen = {**options, "sample_weight": "weight", "reduction": "sum"}
    loss_row(name, predictions, {**inputs, "weight": SAMPLE_WEIGHTS}, chosen, lambda *t: weighted(*t, is_mean=False))


def loss_row(name, predictions, inputs, options, function, log_softmax=False, note=""):
    """Writes one row. With log_softmax, the predictions are the log_softmax of the leaves along the last dimension."""
    leaves = {key: leaf(value) for key, value in predictions.items()}
    values = [F.log_softmax(value, -1) if log_softmax else value for value in leaves.values()]
    loss = function(*values, *inputs.values())
    loss.backward()
    signature = ", ".join(f"%{key}: {typed(value)} split(0)" for key, value in leaves.items())
    results = ", ".join(f"of_{key}: {typed(value)} split(0)" for key, value in leaves.items())
    returned = ", ".join(f"%{key}" for key in leaves)
    lines = ""
    if log_softmax:
        lines = "".join(
            f"%p_{key} = log_softmax %{key} {{dim={value.dim() - 1}}} : {typed(value)} "
            for key, value in leaves.items()
        )
        returned = ", ".join(f"%p_{key}" for key in leaves)
    targets = [key for key in inputs if key not in (options.get("sample_weight"), options.get("element_weight"))]
    chosen = ", ".join(f"{key}={option(value)}" for key, value in options.items())
    expected = [loss, *(value.grad for value in leaves.values())]
    shapes = ", ".join(map(typed, leaves.values()))
    print(f'{{"{name}{{{chosen}}} of {shapes}{note}",')
    print(f' "graph @f({signature}) -> ({results}) {{ {lines}return {returned} }}",')
    names = [leaves, [f"of_{key}" for key in leaves], targets]
    print(f' "{name}", ' + ", ".join(f'"{", ".join(each)}"' for each in names) + f', "{chosen}",')
    print(f" {texts([*leaves.values(), *inputs.values()])},")
    print(f" {texts(expected)}}},")


def texts(tensors):
    """One line for each tensor, which pytorch_loss_test.cc parses: as initializers so many numbers take minutes to
    compile.
    """
    lines = (" ".join(f"{number:.14g}" for number in tensor.detach().reshape(-1).tolist()) for tensor in tensors)
    return "\n  ".join(f'"{line}\\n"' for line in lines)


def option(value):
    """The value in the text form of pass options."""
    if isinstance(value, list):
        return "|".join(map(repr, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    write("make_pytorch_losses.py", [elements, divergences, labels_and_probabilities, embeddings, sequences])
