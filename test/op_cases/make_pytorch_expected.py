"""Writes pytorch_expected.inc: graphs, inputs and the f64 results and gradients that PyTorch computes for them.

    python make_pytorch_expected.py > pytorch_expected.inc     # with torch 2.13.0

Each entry is a graph in text form, with this project's ops and attributes. The numbers come from the corresponding
function of torch; this project computes none of them.
"""

import math

import torch
import torch.nn.functional as F

NAN, INF = float("nan"), float("inf")
DTYPES = {torch.float64: "f64", torch.int64: "i64", torch.bool: "bool"}


def random(*shape):
    """Random multiples of 1/8, which are short in decimal and exact in binary; few ties."""
    return torch.randint(-24, 25, shape).double() / 8


def distinct(*shape):
    """A shuffled range, so that maxima have no ties."""
    count = torch.Size(shape).numel()
    return ((torch.randperm(count).double() - count // 2) / 8).reshape(shape)


def leaves(inputs):
    return {name: tensor.requires_grad_() for name, tensor in inputs.items()}


def typed(tensor):
    return f"{DTYPES[tensor.dtype]}[{','.join(map(str, tensor.shape))}]"


def attribute(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return repr(value) if isinstance(value, (int, float)) else value


def attributes(values):
    return "{" + ", ".join(f"{name}={attribute(value)}" for name, value in sorted(values.items())) + "}"


def numbers(tensor):
    """Numbers in a form that strtod reads: also -0, nan and inf."""
    return '"' + " ".join(f"{value:.14g}" for value in tensor.detach().reshape(-1).tolist()) + '"'


def emit(name, inputs, lines, results, gradients=()):
    """Prints one entry. inputs and results map names to tensors; results[...] are the values %<name> of the lines;
    gradients are those of `loss`, by input.
    """
    signature = ", ".join(f"%{key}: {typed(value)}" for key, value in inputs.items())
    outputs = ", ".join(f"{key}: {typed(value)}" for key, value in results.items())
    body = "\n".join(f"  {line}" for line in lines)
    returned = ", ".join(f"%{key}" for key in results)
    wrt = ", ".join(f'"{key}"' for key in gradients)
    expected = list(results.values()) + [inputs[key].grad for key in gradients]
    print(f'{{"{name}",\n R"(graph @f({signature}) -> ({outputs}) {{\n{body}\n  return {returned}\n}})",')
    print(f" {{{wrt}}},")
    print(" {" + ",\n  ".join(numbers(value) for value in inputs.values()) + "},")
    print(" {" + ",\n  ".join(numbers(value) for value in expected) + "}},")


def differentiated(name, op, inputs, values, y, wrt):
    """One op with result y, and the loss sum(y * dy) with a random dy. Prints also its gradients with respect to the
    inputs `wrt`.
    """
    dy = random(*y.shape)
    loss = (y * dy).sum()
    loss.backward()
    operands = ", ".join(f"%{key}" for key in inputs)
    dims = list(range(y.dim()))
    lines = [
        f"%y = {op} {operands} {attributes(values)} : {typed(y)}",
        f"%weighted = mul %y, %dy : {typed(y)}",
        f"%loss = reduce_sum %weighted {attributes({'dims': dims})} : f64[]",
    ]
    emit(name, {**inputs, "dy": dy}, lines, {"y": y, "loss": loss}, wrt)


def convolutions():
    for name, x, filter_shape, stride, padding, dilation, groups in [
        ("1 dimension", (2, 2, 7), (2, 2, 3), [2], [1], [1], 1),
        ("2 dimensions", (2, 2, 4, 4), (3, 2, 3, 2), [1, 1], [0, 0], [1, 1], 1),
        ("stride, padding, dilation", (1, 2, 6, 5), (2, 2, 2, 3), [2, 1], [1, 2], [3, 2], 1),
        ("groups", (2, 4, 3, 3), (6, 2, 2, 2), [1, 1], [1, 0], [1, 1], 2),
        ("depthwise", (1, 3, 4, 4), (3, 1, 3, 3), [1, 2], [1, 1], [1, 1], 3),
        ("3 dimensions", (1, 2, 3, 3, 4), (2, 2, 2, 1, 2), [1, 2, 1], [0, 0, 1], [1, 1, 2], 1),
    ]:
        convolution = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(stride)]
        inputs = leaves({"x": random(*x), "filter": random(*filter_shape)})
        y = convolution(inputs["x"], inputs["filter"], None, stride, padding, dilation, groups)
        paddings = {"padding_low": padding, "padding_high": padding}
        values = {"stride": stride, **paddings, "dilation": dilation, "groups": groups}
        differentiated(f"convolution, {name}", "convolution", inputs, values, y, ["x", "filter"])


def poolings():
    for name, shape, window, stride, padding, dilation in [
        ("1 dimension", (2, 2, 7), [3], [2], [1], [1]),
        ("2x2", (2, 2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1]),
        ("overlapping windows, padding", (1, 2, 6, 5), [3, 2], [2, 1], [1, 1], [1, 1]),
        ("dilation", (1, 2, 7, 6), [2, 3], [2, 1], [1, 0], [3, 2]),
        ("3 dimensions", (1, 1, 3, 4, 4), [2, 2, 3], [1, 2, 1], [0, 1, 0], [1, 1, 1]),
    ]:
        values = {"window": window, "stride": stride, "padding_low": padding, "padding_high": padding}
        maximum = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(window)]
        # With ties, the first maximum of a window takes the gradient.
        for kind, x in [("", distinct(*shape)), (", ties", torch.randint(1, 4, shape).double())]:
            inputs = leaves({"x": x})
            y = maximum(inputs["x"], window, stride, padding, dilation)
            differentiated(f"max_pool, {name}{kind}", "max_pool", inputs, {**values, "dilation": dilation}, y, ["x"])
        if max(dilation) > 1:
            continue
        average = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(window)]
        for include in [False, True]:
            inputs = leaves({"x": random(*shape)})
            y = average(inputs["x"], window, stride, padding, count_include_pad=include)
            differentiated(
                f"avg_pool, {name}, include_padding={include}", "avg_pool", inputs, {**values, "include_padding": include},
                y, ["x"],
            )  # fmt: skip


def batch_norm_training(name, shape):
    channels = shape[1]
    inputs = leaves({"x": random(*shape), "scale": random(channels), "bias": random(channels)})
    mean, variance = torch.zeros(channels).double(), torch.zeros(channels).double()
    # With momentum 1 the running statistics are those of the batch; the running variance is the unbiased one.
    y = F.batch_norm(
        inputs["x"], mean, variance, inputs["scale"], inputs["bias"], training=True, momentum=1.0, eps=1e-3
    )
    count = y.numel() // channels
    dy = random(*shape)
    loss = (y * dy).sum()
    loss.backward()
    one = f"f64[{channels}]"
    lines = [
        f"%y, %mean, %variance = batch_norm_training %x, %scale, %bias {{epsilon=0.001}} : {typed(y)}, {one}, {one}",
        f"%weighted = mul %y, %dy : {typed(y)}",
        f"%loss = reduce_sum %weighted {attributes({'dims': list(range(len(shape)))})} : f64[]",
    ]
    results = {"y": y, "mean": mean, "variance": variance * (count - 1) / count, "loss": loss}
    emit(f"batch_norm_training, {name}", {**inputs, "dy": dy}, lines, results, ["x", "scale", "bias"])


def batch_norm_inference(name, shape):
    channels = shape[1]
    per_channel = {key: random(channels) for key in ["scale", "bias", "mean"]}
    inputs = leaves({"x": random(*shape), **per_channel, "variance": random(channels).abs() + 0.5})
    wide = [channels if d == 1 else 1 for d in range(len(shape))]
    x, scale, bias, mean, variance = [v if v.dim() > 1 else v.view(wide) for v in inputs.values()]
    # By the formula, because F.batch_norm gives no gradient with respect to the running statistics.
    y = (x - mean) / torch.sqrt(variance + 1e-3) * scale + bias
    given = {key: value.detach() for key, value in inputs.items()}
    theirs = F.batch_norm(given["x"], given["mean"], given["variance"], given["scale"], given["bias"], eps=1e-3)
    torch.testing.assert_close(y, theirs, check_stride=False, rtol=1e-12, atol=1e-12)
    differentiated(f"batch_norm_inference, {name}", "batch_norm_inference", inputs, {"epsilon": 1e-3}, y, list(inputs))


def normalizations():
    for name, shape in [("2 dimensions", (3, 2, 2, 3)), ("no spatial dimension", (5, 3)), ("1 dimension", (2, 3, 4))]:
        batch_norm_training(name, shape)
        batch_norm_inference(name, shape)


def softmaxes():
    for dim in [0, 1]:
        for op, function in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
            inputs = leaves({"x": random(3, 4)})
            differentiated(f"{op} along {dim}", op, inputs, {"dim": dim}, function(inputs["x"], dim), ["x"])
    for shape in [(5, 4), (2, 3, 2, 2)]:
        logits = random(*shape).requires_grad_()
        labels = torch.randint(0, shape[1], (shape[0], *shape[2:]))
        loss = F.cross_entropy(logits, labels)  # the mean over all samples
        loss.backward()
        line = (
            f"%loss, %dlogits = softmax_cross_entropy %logits, %labels {{scale={1 / labels.numel()!r}}} "
            f": f64[], {typed(logits)}"
        )
        emit(
            f"softmax_cross_entropy of {typed(logits)}", {"logits": logits, "labels": labels}, [line],
            {"loss": loss, "dlogits": logits.grad}, ["logits"],
        )  # fmt: skip


def attention(name, q, k, v, mask=None, causal=False, softcap=None):
    """By F.scaled_dot_product_attention. It gives no log-sum-exp and has no softcap; those are computed by the formula."""
    inputs = {"q": random(*q), "k": random(*k), "v": random(*v)}
    inputs = {**leaves(inputs), **({} if mask is None else {"mask": mask})}
    if mask is not None and mask.is_floating_point():
        mask.requires_grad_()
    scale = 1 / math.sqrt(q[-1])
    group = q[-3] // k[-3] if len(q) > 2 else 1
    keys, values = (inputs[each].repeat_interleave(group, -3) if group > 1 else inputs[each] for each in "kv")
    scores = inputs["q"] @ keys.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    visible = torch.ones(q[-2], k[-2]).bool()
    if causal:
        visible = visible.tril()
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~visible, -INF)
    log_sum_exp = scores.logsumexp(-1)
    if softcap:
        y = scores.softmax(-1) @ values
    else:
        y = F.scaled_dot_product_attention(
            inputs["q"], inputs["k"], inputs["v"], mask, is_causal=causal, enable_gqa=group > 1
        )
    dy, weights = random(*y.shape), random(*log_sum_exp.shape)
    # For a query that sees no key, the log-sum-exp is minus infinity and would make the loss NaN.
    loss = (y * dy).sum()
    has_weights = bool(log_sum_exp.isfinite().all())
    if has_weights:
        loss = loss + (log_sum_exp * weights).sum()
    loss.backward()
    values = attributes({"scale": scale, "causal": causal, "softcap": float(softcap or 0)})
    operands = ", ".join(f"%{key}" for key in inputs)
    lines = [
        f"%y, %log = attention {operands} {values} : {typed(y)}, {typed(log_sum_exp)}",
        f"%weighted = mul %y, %dy : {typed(y)}",
        f"%of_y = reduce_sum %weighted {attributes({'dims': list(range(y.dim()))})} : f64[]",
    ]
    given = {**inputs, "dy": dy}
    if has_weights:
        given["weights"] = weights
        lines += [
            f"%of_rows = mul %log, %weights : {typed(log_sum_exp)}",
            f"%of_log = reduce_sum %of_rows {attributes({'dims': list(range(log_sum_exp.dim()))})} : f64[]",
            "%loss = add %of_y, %of_log : f64[]",
        ]
    else:
        lines[-1] = lines[-1].replace("%of_y =", "%loss =")
    wrt = [key for key, value in inputs.items() if value.requires_grad]
    emit(f"attention, {name}", given, lines, {"y": y, "log": log_sum_exp, "loss": loss}, wrt)


def attentions():
    far = torch.tensor([[0, -INF, -1, -2], [-INF] * 4, [-INF, 1, 0.5, -INF]], dtype=torch.float64)
    attention("self", (2, 2, 4, 3), (2, 2, 4, 3), (2, 2, 4, 3))
    attention("one head", (3, 4), (5, 4), (5, 2))
    attention("causal, fewer keys", (2, 5, 3), (2, 3, 3), (2, 3, 2), causal=True)
    attention("causal, more keys", (2, 3, 3), (2, 5, 3), (2, 5, 2), causal=True)
    attention("groups", (2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2), causal=True)
    attention("bools", (2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 3), torch.rand(2, 1, 3, 4) > 0.4)
    attention("bools of keys", (2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 3), torch.tensor([[[[1, 1, 0, 1]]]]).bool())
    attention("a query that sees nothing", (2, 3, 2), (2, 4, 2), (2, 4, 3), (far > -INF)[None].contiguous())
    attention("added", (2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 3), random(1, 2, 3, 4))
    attention("added minus infinity", (2, 3, 2), (2, 4, 2), (2, 4, 3), far[None].clone())
    attention("softcap", (2, 3, 2), (2, 4, 2), (2, 4, 3), random(2, 1, 4), softcap=2.0)


# The states of each optimizer op, and torch's names for them. COUNTS_STEPS has the ops with an operand that counts
# steps.
OPTIMIZER_STATES = {
    "sgd": {},
    "sgd_momentum": {"v": "momentum_buffer"},
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "rmsprop": {"square": "square_avg"},
    "rmsprop_momentum": {"square": "square_avg", "v": "momentum_buffer"},
    "adagrad": {"sum": "sum"},
    "adamax": {"m": "exp_avg", "norm": "exp_inf"},
    "radam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adadelta": {"square": "square_avg", "change": "acc_delta"},
    "rprop": {"last": "prev", "size": "step_size"},
    "lion": {"m": "exp_avg"},
    "rmsprop_centered": {"square": "square_avg", "mean": "grad_avg"},
    "rmsprop_centered_momentum": {"square": "square_avg", "mean": "grad_avg", "v": "momentum_buffer"},
    "nadam": {"m": "exp_avg", "v": "exp_avg_sq", "missing": "mu_product"},
    "lamb": {"m": "exp_avg", "v": "exp_avg_sq"},
    "lars": {"v": "momentum_buffer"},
    "adafactor": {"rows": "row_var", "columns": "col_var"},
    "adafactor_vector": {"square": "variance"},
    "muon": {"m": "momentum_buffer"},
}
COUNTS_STEPS = {"adam", "adagrad", "adamax", "radam", "rprop", "nadam", "lamb", "adafactor", "adafactor_vector"}
# Our names for torch's options: some of torch's are pairs, which are two options here; `centered` is expressed by the
# op's name.
SPELLINGS = {
    "betas": ("beta1", "beta2"), "eps": ("epsilon",), "etas": ("shrinkage", "growth"), "step_sizes": ("smallest", "largest"),
    "ns_coefficients": ("ns_a", "ns_b", "ns_c"), "centered": (),
}  # fmt: skip


class Lion(torch.optim.Optimizer):
    """Lion, as Chen et al., "Symbolic discovery of optimization algorithms", 2023, publish it for PyTorch. torch has
    none.
    """

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"] * beta1 + p.grad * (1 - beta1)
                p.add_(torch.sign(update), alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):
    """LAMB, as in You et al., "Large batch optimization for deep learning", 2020, and NVIDIA's FusedLAMB, which adapts
    all variables and does not clip. torch has none. timm 1.0.20's Lamb gives the same numbers with always_adapt and
    without max_grad_norm.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                mean = state["exp_avg"] / (1 - beta1 ** state["step"])
                root = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt()
                update = mean / (root + group["eps"]) + group["weight_decay"] * p
                of_p, of_update = p.norm(), update.norm()
                ratio = of_p / of_update if of_p > 0 and of_update > 0 else 1.0
                p.sub_(group["lr"] * ratio * update)


class Lars(torch.optim.Optimizer):
    """LARS, as in You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, with torch's
    momentum. torch has none. timm 1.0.20's Lars gives the same numbers with always_adapt.
    """

    def __init__(self, params, lr, momentum=0.9, nesterov=False, weight_decay=0.0, trust_coefficient=0.001, eps=1e-8):
        defaults = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, {"lr": lr, "trust_coefficient": trust_coefficient, **defaults})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                of_p, of_grad = p.norm(), p.grad.norm()
                divisor = of_grad + group["weight_decay"] * of_p + group["eps"]
                ratio = group["trust_coefficient"] * of_p / divisor if of_p > 0 and of_grad > 0 else 1.0
                d = ratio * (p.grad + group["weight_decay"] * p)
                v = state["momentum_buffer"].mul_(group["momentum"]).add_(d)
                p.sub_(group["lr"] * (d + group["momentum"] * v if group["nesterov"] else v))


class Muon(torch.optim.Muon):
    """torch's Muon, with its products in the dtype of the variable instead of bf16."""

    def step(self):
        in_bf16 = torch.Tensor.bfloat16
        torch.Tensor.bfloat16 = torch.Tensor.clone
        try:
            super().step()
        finally:
            torch.Tensor.bfloat16 = in_bf16


def long_optimizer_choices():
    """Like optimizer_choices, with the shape of the variable added."""
    adam = {"weight_decay": 0.05, "betas": (0.8, 0.99), "eps": 1e-3}
    centered = {"centered": True, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05}
    lars = {"momentum": 0.8, "weight_decay": 0.05, "trust_coefficient": 0.25}
    adafactor = {"beta2_decay": -0.5, "eps": (0.25, 0.5), "d": 2.0, "weight_decay": 0.05}
    muon = {"momentum": 0.8, "ns_coefficients": (3.0, -3.5, 1.5), "ns_steps": 3, "eps": 1e-3, "weight_decay": 0.05}
    return [
        ("RMSprop, centered", torch.optim.RMSprop, "rmsprop_centered", {"centered": True}, (6,)),
        ("RMSprop, centered, decay, alpha", torch.optim.RMSprop, "rmsprop_centered", centered, (6,)),
        ("RMSprop, centered, momentum", torch.optim.RMSprop, "rmsprop_centered_momentum",
         {"momentum": 0.9, **centered}, (6,)),
        ("NAdam", torch.optim.NAdam, "nadam", {}, (6,)),
        ("NAdam, decay, betas", torch.optim.NAdam, "nadam", {"momentum_decay": 0.25, **adam}, (6,)),
        ("NAdam, decoupled", torch.optim.NAdam, "nadam", {"decoupled_weight_decay": True, **adam}, (2, 3)),
        ("NAdam, constant momentum", torch.optim.NAdam, "nadam", {"momentum_decay": 0.0}, (6,)),
        ("LAMB", Lamb, "lamb", {}, (2, 3)),
        ("LAMB, decay, betas", Lamb, "lamb", adam, (6,)),
        ("LARS", Lars, "lars", {}, (2, 3)),
        ("LARS, options", Lars, "lars", lars, (6,)),
        ("LARS, Nesterov", Lars, "lars", {"nesterov": True, **lars}, (6,)),
        ("Adafactor", torch.optim.Adafactor, "adafactor", {}, (3, 4)),
        ("Adafactor, options", torch.optim.Adafactor, "adafactor", adafactor, (4, 3)),
        ("Adafactor, several matrices", torch.optim.Adafactor, "adafactor", {}, (2, 3, 2)),
        ("Adafactor, a vector", torch.optim.Adafactor, "adafactor_vector", {}, (6,)),
        ("Adafactor, a vector, options", torch.optim.Adafactor, "adafactor_vector", adafactor, (6,)),
        ("Muon", Muon, "muon", {}, (3, 4)),
        ("Muon, more rows", Muon, "muon", {"adjust_lr_fn": "match_rms_adamw"}, (5, 2)),
        ("Muon, more rows, as published", Muon, "muon", {"adjust_lr_fn": "original", "nesterov": False}, (5, 2)),
        ("Muon, options", Muon, "muon", muon, (2, 4)),
    ]  # fmt: skip


def long_optimizers():
    """Twenty steps, some with a new learning rate in each, and some with gradients or variables that are zero."""
    for name, make, op, values, shape in long_optimizer_choices():
        w, gradients = random(*shape), [random(*shape) for _ in range(20)]
        optimizer_steps(f"20 steps of {name}", make, op, values, w, gradients)
    for name, make, op, values, shape in long_optimizer_choices():
        if name not in (
            "RMSprop, centered, momentum",
            "NAdam, decay, betas",
            "NAdam, decoupled",
            "LAMB, decay, betas",
            "LARS, options",
            "Adafactor, options",
            "Adafactor, a vector, options",
            "Muon, options",
        ):
            continue  # fmt: skip
        w, gradients = random(*shape), [random(*shape) for _ in range(20)]
        rates = [0.125 * (step % 7 + 1) / 4 for step in range(20)]
        optimizer_steps(f"20 steps with changing rates of {name}", make, op, values, w, gradients, rates)
    for name, make, op, values, shape in {each[2]: each for each in long_optimizer_choices()}.values():
        zero = torch.zeros(shape, dtype=torch.float64)
        optimizer_steps(f"first no gradient, {name}", make, op, values, random(*shape), [zero, random(*shape)])
        optimizer_steps(f"first no weights, {name}", make, op, values, zero, [random(*shape), random(*shape)])


def optimizer_choices():
    """For each entry a name, torch's class, our op, and torch's options."""
    adam = {"weight_decay": 0.05, "betas": (0.8, 0.99), "eps": 1e-3}
    rmsprop = {"alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05}
    adagrad = {"lr_decay": 0.25, "eps": 1e-3, "weight_decay": 0.05}
    adadelta = {"rho": 0.8, "eps": 1e-3, "weight_decay": 0.05}
    rprop = {"etas": (0.25, 2.0), "step_sizes": (0.05, 0.2)}
    lion = {"betas": (0.8, 0.95), "weight_decay": 0.05}
    return [
        ("SGD", torch.optim.SGD, "sgd", {}),
        ("SGD, decay", torch.optim.SGD, "sgd", {"weight_decay": 0.05}),
        ("momentum", torch.optim.SGD, "sgd_momentum", {"momentum": 0.9}),
        ("momentum, decay", torch.optim.SGD, "sgd_momentum", {"momentum": 0.9, "weight_decay": 0.05}),
        ("Nesterov, decay", torch.optim.SGD, "sgd_momentum", {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
        ("Adam", torch.optim.Adam, "adam", {}),
        ("Adam, decay, betas", torch.optim.Adam, "adam", adam),
        ("AdamW", torch.optim.AdamW, "adam", {"weight_decay": 0.05}),
        ("AdamW without decay", torch.optim.AdamW, "adam", {"weight_decay": 0.0}),
        ("RMSprop", torch.optim.RMSprop, "rmsprop", {}),
        ("RMSprop, decay, alpha", torch.optim.RMSprop, "rmsprop", rmsprop),
        ("RMSprop, momentum", torch.optim.RMSprop, "rmsprop_momentum", {"momentum": 0.9}),
        ("RMSprop, momentum, decay, alpha", torch.optim.RMSprop, "rmsprop_momentum", {"momentum": 0.9, **rmsprop}),
        ("Adagrad", torch.optim.Adagrad, "adagrad", {}),
        ("Adagrad, both decays", torch.optim.Adagrad, "adagrad", adagrad),
        ("Adagrad, initial value", torch.optim.Adagrad, "adagrad", {"initial_accumulator_value": 0.75, **adagrad}),
        ("Adamax", torch.optim.Adamax, "adamax", {}),
        ("Adamax, decay, betas", torch.optim.Adamax, "adamax", adam),
        ("RAdam", torch.optim.RAdam, "radam", {}),
        ("RAdam, decay, betas", torch.optim.RAdam, "radam", {**adam, "betas": (0.8, 0.9)}),
        ("Adadelta", torch.optim.Adadelta, "adadelta", {}),
        ("Adadelta, decay, rho", torch.optim.Adadelta, "adadelta", adadelta),
        ("Rprop", torch.optim.Rprop, "rprop", {}),
        ("Rprop, options", torch.optim.Rprop, "rprop", rprop),
        ("Lion", Lion, "lion", {}),
        ("Lion, decay, betas", Lion, "lion", lion),
    ]


def optimizers():
    """Three steps of each optimizer with given gradients; of RAdam as many as it needs to begin adapting."""
    for name, make, op, values in optimizer_choices():
        steps = 8 if op == "radam" else 3
        w, gradients = random(6), [random(6) for _ in range(steps)]
        optimizer_steps(f"{steps} steps of {name}", make, op, values, w, gradients)


def our_options(make, op, values):
    """Returns our options for those of torch, except for the learning rate."""
    ours = dict(values)
    if op.startswith("adafactor") and "eps" in ours:
        ours["epsilon1"], ours["epsilon2"] = ours.pop("eps")
    for spelling in [each for each in SPELLINGS if each in ours]:
        value = ours.pop(spelling)
        if SPELLINGS[spelling]:
            ours.update(zip(SPELLINGS[spelling], value if isinstance(value, tuple) else (value,), strict=True))
    if make is torch.optim.AdamW:
        ours["decoupled"] = True
    return ours


def optimizer_steps(name, make, op, values, w, gradients, rates=None):
    """Prints an entry. States start as zeros. The first results are the variable after each step, or after steps 1, 2
    and 20 if there are many.
    """
    ours = our_options(make, op, values)
    variable = torch.nn.Parameter(w.clone())
    torch.set_default_dtype(torch.float64)  # torch keeps its scalars in this dtype
    optimizer = make([variable], lr=0.125, **values)
    states = OPTIMIZER_STATES[op]
    inputs = {"w0": w, **{f"g{i + 1}": g for i, g in enumerate(gradients)}}
    lines, results = [], {}
    for step, gradient in enumerate(gradients, start=1):
        variable.grad = gradient.clone()
        if rates:
            inputs[f"rate{step}"] = torch.tensor(rates[step - 1])
            optimizer.param_groups[0]["lr"] = rates[step - 1]
        optimizer.step()
        kept = optimizer.state[variable]
        if step == 1:
            inputs.update({f"{s}0": torch.zeros_like(kept[key]) for s, key in states.items()})
        operands = ["w", *states]
        count = ""
        if op in COUNTS_STEPS:
            inputs[f"step{step}"] = torch.tensor(step)
            count = f", %step{step}"
        types = ", ".join([typed(w), *[typed(kept[key]) for key in states.values()]])
        given = attributes({"learning_rate": f"%rate{step}" if rates else 0.125, **ours})
        lines.append(
            ", ".join(f"%{s}{step}" for s in operands) + f" = {op} "
            + ", ".join(f"%{s}{step - 1}" for s in operands) + f"{count}, %g{step} {given} : {types}"
        )  # fmt: skip
        if step in (1, 2, 20) or len(gradients) < 10:
            results[f"w{step}"] = variable.detach().clone()
    torch.set_default_dtype(torch.float32)
    # torch's Adagrad includes the initial value in its sum; ours does not. Where torch keeps a product, ours keeps 1
    # minus it.
    outside = {"sum": lambda x: x - ours.get("initial_accumulator_value", 0), "missing": lambda x: 1 - x}
    results.update({f"{s}{len(gradients)}": outside.get(s, lambda x: x)(kept[key]) for s, key in states.items()})
    emit(name, inputs, lines, results)


SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1e-310, -1e-310, 1.5, -2.0]


def special_values():
    """Special values op by op: NaN, infinities, zeros of both signs and denormals. The names begin with "special".

    Left out: sign(NaN), which is NaN here and 0 in torch; the gradient of a window with several NaN, which goes to the
    first here and to the last in torch; and gradients of -0.0, whose sign the first step with momentum keeps in torch,
    while here they are added to a momentum of zero.
    """
    x = torch.tensor(SPECIAL, dtype=torch.float64)
    for op, function in [
        ("neg", torch.neg), ("abs", torch.abs), ("exp", torch.exp), ("log", torch.log),
        ("log1p", torch.log1p), ("sqrt", torch.sqrt), ("rsqrt", torch.rsqrt), ("tanh", torch.tanh),
        ("sigmoid", torch.sigmoid), ("softsign", F.softsign), ("erf", torch.erf), ("relu", torch.relu),
        ("floor", torch.floor), ("ceil", torch.ceil), ("round", torch.round), ("sin", torch.sin), ("cos", torch.cos),
        ("tan", torch.tan), ("asin", torch.asin), ("acos", torch.acos), ("atan", torch.atan), ("sinh", torch.sinh),
        ("cosh", torch.cosh), ("asinh", torch.asinh), ("acosh", torch.acosh), ("atanh", torch.atanh),
    ]:  # fmt: skip
        emit(f"special {op}", {"x": x}, [f"%y = {op} %x : {typed(x)}"], {"y": function(x)})
    left, right = x.repeat_interleave(len(x)), x.repeat(len(x))
    for op, function in [
        ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div), ("max", torch.maximum),
        ("min", torch.minimum), ("pow", torch.pow),
    ]:  # fmt: skip
        # Left out: zeros of different signs, either of which may count as the larger.
        keep = ~((left == 0) & (right == 0)) if op in ("max", "min") else torch.ones_like(left).bool()
        a, b = left[keep], right[keep]
        emit(f"special {op}", {"x": a, "y": b}, [f"%z = {op} %x, %y : {typed(a)}"], {"z": function(a, b)})
    rows = torch.tensor(
        [[1, NAN, 3, INF], [INF, 1, 2, 3], [-INF, 1, 2, 3], [-INF] * 4, [-INF, INF, 1, 2], [1e-310, -1, -2, -3], [NAN] * 4],
        dtype=torch.float64,
    )  # fmt: skip
    for op, function in [
        ("reduce_sum", lambda t: t.sum(1)), ("reduce_prod", lambda t: t.prod(1)),
        ("reduce_max", lambda t: t.amax(1)), ("reduce_min", lambda t: t.amin(1)),
    ]:  # fmt: skip
        emit(f"special {op}", {"x": rows}, [f"%y = {op} %x {{dims=[1]}} : f64[7]"], {"y": function(rows)})
    emit("special argmax", {"x": rows}, ["%y = argmax %x {dim=1} : i64[7]"], {"y": rows.argmax(1)})
    for op, function in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
        emit(f"special {op}", {"x": rows}, [f"%y = {op} %x {{dim=1}} : {typed(rows)}"], {"y": function(rows, 1)})
    for i in range(len(rows)):
        logits, labels = rows[i : i + 1].clone().requires_grad_(), torch.tensor([2])
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        line = "%loss, %d = softmax_cross_entropy %logits, %labels {scale=1.0} : f64[], f64[1,4]"
        emit(
            f"special softmax_cross_entropy {i}", {"logits": logits, "labels": labels}, [line],
            {"loss": loss, "d": logits.grad},
        )  # fmt: skip
    elementwise = [each[:4] for each in long_optimizer_choices() if each[2].startswith(("rmsprop", "nadam"))]
    for name, make, op, values in optimizer_choices() + elementwise:
        if op in ("rprop", "lion"):
            continue  # torch treats the sign of NaN as 0, so it hides a gradient that is NaN
        keep = ~((right == 0) & right.signbit())
        optimizer_steps(f"special {name}", make, op, values, left[keep], [right[keep]])
    values = {"window": [2, 2], "stride": [2, 2], "padding_low": [1, 1], "padding_high": [1, 1]}
    images = [
        [NAN, 1, 2, 3, 4, 9, NAN, 5, INF, -INF, 6, 7, -INF, -INF, -INF, 8],
        [-INF] * 16,
        [1, 2, 3, 4, NAN, 6, INF, 8, -0.0, 1, 2, 3, 4, 5, 1e-310, -1],
    ]
    for i, image in enumerate(images):
        inputs = leaves({"x": torch.tensor(image, dtype=torch.float64).reshape(1, 1, 4, 4)})
        y = F.max_pool2d(inputs["x"], 2, 2, 1)
        differentiated(f"special max_pool {i}", "max_pool", inputs, {**values, "dilation": [1, 1]}, y, ["x"])
        inputs = leaves({"x": torch.tensor(image, dtype=torch.float64).reshape(1, 1, 4, 4)})
        y = F.avg_pool2d(inputs["x"], 2, 2, 1, count_include_pad=False)
        differentiated(f"special avg_pool {i}", "avg_pool", inputs, {**values, "include_padding": False}, y, ["x"])
    a, b = rows[:, :3].contiguous(), rows[:3, :].contiguous()
    emit("special matmul", {"x": a, "y": b}, ["%z = matmul %x, %y : f64[7,4]"], {"z": a @ b})
    images = [(rows[:4].reshape(1, 1, 4, 4), random(1, 1, 2, 2)), (random(1, 1, 4, 4), rows[:1].reshape(1, 1, 2, 2))]
    for i, (image, weights) in enumerate(images):
        padded = {"stride": [1, 1], "padding_low": [1, 1], "padding_high": [1, 1], "dilation": [1, 1], "groups": 1}
        line = f"%y = convolution %x, %f {attributes(padded)} : f64[1,1,5,5]"
        emit(f"special convolution {i}", {"x": image, "f": weights}, [line], {"y": F.conv2d(image, weights, padding=1)})


def write(maker, parts):
    print(f"// Made by {maker} with torch {torch.__version__}; not edited by hand.")
    print("// clang-format off")
    for part in parts:
        torch.manual_seed(7)  # so that a new row changes only its own part
        part()
    print("    // clang-format on")  # at the indentation that `make format` gives it


if __name__ == "__main__":
    write(
        "make_pytorch_expected.py",
        [convolutions, poolings, normalizations, softmaxes, attentions, optimizers, special_values, long_optimizers],
    )
