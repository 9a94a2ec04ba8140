"""The blocks of code in documents, and what their programs need. As a program it runs the Python of a page."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: str
    line: int  # of its first line of code, from 1
    heading: str  # of the section that it is in
    language: str  # empty without one
    code: str


def blocks(page: str, language: str | None = None) -> list[Block]:
    """Returns the blocks of a page, those of one language or all; of a block in a list, without its indentation."""
    text = (ROOT / page).read_text()
    found, heading = [], ""
    pattern = r"^#+ (?P<title>[^\n]+)$|^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```$"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        heading = match["title"] or heading
        if match["code"] is not None and language in (None, match["language"]):
            line = text.count("\n", 0, match.start("code")) + 1
            code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
            found.append(Block(page, line, heading, match["language"], code))
    return found


@dataclass(frozen=True)
class Page:
    """How the Python of a page is run: its blocks in order, in one namespace, in an empty folder with links to
    examples/ and test/."""

    ranks: int = 1
    servers: int = 0
    after: str = ""  # the page that it continues, which is run first
    before: dict[str, str] = field(default_factory=dict)  # code to run before the first block that has the text
    check: str = ""  # code to run after the last block
    not_run: dict[str, str] = field(default_factory=dict)  # the reason not to run the block that has the text


WORLD = "import numpy as np\nimport lockstep as ls\nworld = ls.Communicator.from_environment()\n"
TORCH = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\n"
# A model of 8 rows, and batches for it.
MLP = f"""{WORLD}
model = ls.load_onnx("test/models/mlp.onnx", dims={{"batch": 8}})
loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1)
step = ls.train_step(model, loss, optimizer)
def batch(parts):
    return {{"x": np.ones((8 // parts, 12), np.float32), "label": np.zeros(8 // parts, np.int64)}}
"""
MNIST = """import numpy as np
random = np.random.default_rng(0)
images, labels = random.random((1000, 1, 28, 28), np.float32), random.integers(0, 10, 1000)
epoch = 0
"""
LAYERS = """
model = ls.parse('''
graph @net(%x: f32[ROWS,12] split(0), state %embed: f32[12,8], state %0.mlp.up.weight: f32[16,8],
           state %0.mlp.down.weight: f32[8,16], state %head: f32[8,4]) -> (logits: f32[ROWS,4] split(0)) {
  %1 = matmul %x, %embed : f32[ROWS,8]
  %2 = matmul %1, %0.mlp.up.weight {transpose_b=true} : f32[ROWS,16]
  %3 = matmul %2, %0.mlp.down.weight {transpose_b=true} : f32[ROWS,8]
  %4 = matmul %3, %head : f32[ROWS,4]
  return %4
}'''.replace("ROWS", str(rows)))
loss = ls.loss.softmax_cross_entropy("logits", "label")
"""
SAME_AS_RANK_0 = """
import torch.distributed
for parameter in model.parameters():
    first = parameter.detach().clone()
    torch.distributed.broadcast(first, 0)
    assert torch.equal(first, parameter)
"""
OTHER_FRAMEWORK = "needs {}, in a Python environment of its own; it is a part of examples/frameworks/{}"

PAGES = {
    "README.md": Page(
        before={"import lockstep": MNIST},
        check="""
assert 0 < float(loss) < 10
files = "examples/mnist/lenet.onnx", "build/train/lenet-trained.onnx"
first, last = (ls.compile(ls.load_onnx(file, {"batch": 1})).state for file in files)
assert list(first) == list(last) and not any(np.array_equal(first[name], last[name]) for name in first)
""",
    ),
    "docs/communication.md": Page(
        ranks=2,
        before={"exe.strategy": MLP},
        check="""
losses = [program(**batch(2))["loss"] for program in (exe, halved, sharded, other, with_pass)]
assert any("bf16" in line for line in with_pass.collectives)
assert np.allclose(losses, losses[0]) and any("bf16" in line for line in halved.collectives)
assert "sgd" in reason and "partial(sum)" in reason, reason
""",
    ),
    "docs/elastic.md": Page(
        before={
            "def train": f"""{WORLD}rows = 128\n{LAYERS.replace("%x", "%image")}
images, labels = np.ones((256, 12), np.float32), np.arange(256) % 4
per_epoch, epochs, steps = 2, 501, 5
""",
            "checkpoints =": """
exe = ls.compile(step, world=world)
exe.step = 998
""",
        },
        check="""
assert weights.shape == (8, 4)
assert exe.step == 1002
assert checkpoints.restore(exe)["batch"] == 128 and exe.step == 1000
""",
    ),
    "docs/exchanges.md": Page(
        ranks=2,
        before={"top_k": MLP},
        check="""
collectives = exe.collectives
assert exe(**batch(2))["loss"] > 0
assert {"i8", "i32"} <= {each.split()[1].partition("[")[0] for each in collectives}, collectives
assert "mine" in reason and "local" in reason and "ranks.sum" in reason, reason
assert '%11 = sign %6 : f32[12,10] local @"python:scaled_sign/exchanges.md:' in str(body)
without = ls.compile(ls.train_step(model, loss, optimizer), world=world)
for name in without.state:
    without.state[name] = exe.state[name]
""",
    ),
    "docs/frameworks.md": Page(
        before={
            "imported": f"""{WORLD}{TORCH}
x, label = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3))
def imported(module):
    return ls.from_torch(module, x, dims={{"batch": 4}}, output_names=["logits"], cache="cache")
loss, optimizer = ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1)
""",
            "without_decay": "model = imported(module)\n",
            "class WithLoss": """
assert without_decay == ("0.bias", "2.bias")
net, my_loss = module, nn.functional.cross_entropy
""",
            "averaged": """
assert ls.compile(step, world=world)(x=np.ones((128, 6), np.float32), label=np.zeros(128, np.int64))["loss"] > 0
model = imported(module)
exe = ls.compile(ls.train_step(model, loss, optimizer, average=ls.average.exponential(0.999)), world=world)
exe(**{model.inputs[0].name: x.numpy(), "label": label.numpy()})
""",
            "torch_optimizer": """
assert np.array_equal(module[2].bias.detach().numpy(), exe.state.averaged()["2.bias"])
torch_optimizer = torch.optim.Adam(module.parameters())
nn.functional.cross_entropy(module(x), label).backward()
torch_optimizer.step()
exe = ls.compile(ls.train_step(model, loss, ls.optim.Adam(1e-3)), world=world)
""",
            "head": """
assert exe.step == 1 and np.abs(exe.state["2.bias/adam_m"]).max() > 0
""",
            "one_cycle": "steps = 10\n",
        },
        check="ls.train_step(model, loss, optimizer)\nassert whole.step == head.step == 0\n",
        not_run={
            "tf2onnx": OTHER_FRAMEWORK.format("TensorFlow", "keras_model.py"),
            "jax2onnx": OTHER_FRAMEWORK.format("JAX", "jax_model.py"),
        },
    ),
    "docs/from_ddp.md": Page(
        ranks=2,
        before={
            "import lockstep as ls": """
import os
os.environ["LOCKSTEP_RENDEZVOUS_FILE"] = "meet"  # a second program of the job: the first one's port is taken
by_ddp = {name: value.clone() for name, value in module.state_dict().items()}
"""
        },
        check="""
for name, value in module.state_dict().items():
    torch.testing.assert_close(value, by_ddp[name])
    assert not torch.equal(value, first[name])
""",
    ),
    "docs/from_onnxruntime.md": Page(
        check="""
first, last = (ls.compile(ls.load_onnx(file, {"batch": 8})).state for file in ("test/models/mlp.onnx", "trained.onnx"))
changed = {name for name in first if not np.array_equal(first[name], last[name])}
assert changed == {"fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"} and checkpoints.steps() == [10]
""",
    ),
    "docs/graphs_in_python.md": Page(
        before={
            "penalty": """
exe_of_loop = ls.compile(g.finish())
h, inputs = np.zeros(8), np.arange(40, dtype=np.float32).reshape(5, 8) / 40
for each in inputs:
    h = np.tanh(each + h @ exe_of_loop.state["weight"])
np.testing.assert_allclose(exe_of_loop(rows=inputs)["last"], h, rtol=1e-5)
other = ls.graph.Builder("normalized")
other.result("y", batch_norm(other.input("x", "f32", (8, 3), split=0), "bn"))
normalized = ls.train_step(other.finish(), ls.loss.mean_squared_error("y", "target"), ls.optim.SGD(0.1))
assert normalized.trained == ["bn.weight", "bn.bias"]
""",
            "placed": """
rows = np.arange(12, dtype=np.float32).reshape(4, 3)
totals = ls.interpret(g.finish(), [{"x": rows[:2]}, {"x": rows[2:]}])
assert [float(each["total"]) for each in totals] == [506, 506]
exe(x=np.float32([2, 4]))
assert exe.state["average"].tolist() == [1, 2] and gradient.shape == (3,) and step.trained[0] == "fc1.weight"
""",
        },
        check="assert str(changed).count(': bf16') == 4 and str(placed).count(': bf16') == 0\n",
    ),
    "docs/horovod.md": Page(
        ranks=2,
        before={
            "hvd": f"""{TORCH}
model = nn.Linear(4, 3)
loader = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(2)]
start = model.weight.detach().clone()
"""
        },
        check="""
assert not torch.equal(model.weight, start)
every = hvd.allgather(model.weight.detach()[None])
assert len(every) == 2 and torch.equal(every[0], every[1])
""",
    ),
    "docs/kvstore.md": Page(ranks=2, check="assert store.num_workers == 2\n"),
    "docs/model_parallelism.md": Page(
        ranks=4,
        before={
            "mesh": f"{WORLD}rows = 8\n{LAYERS}step = ls.train_step(model, loss, ls.optim.SGD(0.1))\n",
            "ls.plan": """
assert exe.state["0.mlp.up.weight"].shape == (8, 8) and exe.state["embed"].shape == (12, 8)
from lockstep.forecast import Link, Machine
Machine(ranks=4, within=Link(1e-6, 1e9)).write("machine.toml")
del Machine
""",
        },
        check="assert str(exe.strategy).startswith('mesh={data=2,model=2}')\n",
    ),
    "docs/options.md": Page(ranks=4, before={"ls.Strategy": MLP}, check="exe(**batch(2))\n"),
    "docs/parameter_servers.md": Page(ranks=2, servers=1, check="assert world.size == 2 and trainer.epoch == 2\n"),
    "docs/passes_in_python.md": Page(
        ranks=2,
        before={"bf16_for_wide_layers": MLP, "shown": "shown = []\n"},
        check="""
assert "bf16_for_wide_layers" in exe.passes and sum(": bf16" in line for line in str(exe.graph).splitlines()) > 0
ls.verify(step, 2, passes=[show])
[(sums, parts, layers)] = shown
assert sums == parts == 7 and layers == 3
ls.compile(step, world=world, passes=[without_biases, show])(**batch(2))
""",
    ),
    "docs/pipeline.md": Page(
        ranks=4,
        before={
            "mesh": f"""{WORLD}rows = 128\n{LAYERS}
samples, labels = np.ones((256, 12), np.float32), np.arange(256) % 4
"""
        },
        check="assert exe.step == 2 and 0 < loss < 10\n",
    ),
    "docs/precision.md": Page(
        before={"precision=": MLP}, check="assert 'bf16' in str(step) and ls.compile(step)(**batch(1))['loss'] > 0\n"
    ),
    "docs/torch_distributed.md": Page(
        ranks=2,
        before={"torch_distributed": f"{TORCH}model = nn.Linear(4, 3)\n"},
        check="""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.full((2, 4), 1.0 + torch.distributed.get_rank())).square().sum().backward()
optimizer.step()
"""
        + SAME_AS_RANK_0
        + "torch.distributed.destroy_process_group()\n",
    ),
    "docs/training.md": Page(
        after="README.md",
        before={
            "while exe.step": "steps = 0\n",
            "from_torch": f"{TORCH}module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n",
        },
    ),
    "docs/tutorial.md": Page(
        ranks=2,
        check="""
if world.rank == 0:
    accuracy = float((found == truth).mean())
    again = ls.load_onnx("digits.onnx", {"batch": 1000})
    loss = ls.loss.softmax_cross_entropy(again.results[0].name, "label")
    evaluation = ls.compile(ls.evaluation(again, loss), world=ls.Communicator.in_process(1)[0])
    assert accuracy > 0.95 and evaluation.evaluate([{"input": others, "label": truth}])["accuracy"] == accuracy
""",
    ),
    "docs/watching.md": Page(
        ranks=2,
        before={
            "print(exe": f"{MLP}exe = ls.compile(step, world=world)\nexe(**batch(2))\n",
            "first_batches": "first_batches = [batch(2)] * 10\n",
            "roofline=True": "exe(**first_batches[0])\n",
        },
        check="""
assert exe(**first_batches[0])['loss'] > 0
assert explained.bytes == 4 * (208 + 136 + 45 + 1)
assert world.rank or "bf16" in open("step.html").read()
""",
    ),
    "docs/numerics.md": Page(
        ranks=2,
        before={"check_numerics": MLP, "find_nan": 'exe.save("before")\ninputs = batch(2)\n'},
        check="assert found is None\n",
    ),
    "docs/verify.md": Page(ranks=2, before={"verify=": MLP}, check="assert exe(**batch(2))['loss'] > 0\n"),
    "docs/wire.md": Page(ranks=2, before={"wire=": MLP}, check="assert exe(**batch(2))['loss'] > 0\n"),
}


def execute(page: str, variables: dict[str, Any]) -> int:
    """Runs the blocks of a page. Returns how many; an error shows the line of the page."""
    how = PAGES[page]
    ran = execute(how.after, variables) if how.after else 0
    waiting = dict(how.before)
    for block in blocks(page, "python"):
        for text in [text for text in waiting if text in block.code]:
            exec(compile(waiting.pop(text), f"<before {text!r} of {page}>", "exec"), variables)  # noqa: S102
        code = compile("\n" * (block.line - 1) + block.code, ROOT / page, "exec")
        if not any(text in block.code for text in how.not_run):
            exec(code, variables)  # noqa: S102 (the document is ours)
            ran += 1
    assert not waiting, f"no block of {page} has {list(waiting)}"
    exec(compile(how.check, f"<check of {page}>", "exec"), variables)  # noqa: S102
    return ran


if __name__ == "__main__":
    print(f"RAN {execute(sys.argv[1], {'__name__': '__main__'})}")
