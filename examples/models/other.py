"""Recommendation, experts, graphs and point clouds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from registry import BATCH, Example, example, labels
from torch import nn


class Dlrm(nn.Module):
    """Embedding tables and dense features, and the products of each pair of them (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, 8, mode="sum") for rows in (20, 30)] + [nn.Embedding(15, 8)])
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, dense: torch.Tensor, clicks: torch.Tensor, country: torch.Tensor) -> torch.Tensor:
        first = self.bottom(dense)
        tables = [self.tables[i].get_parameter("weight") for i in range(2)]
        bags = [table[clicks[:, i]].sum(1) for i, table in enumerate(tables)]
        features = torch.stack([first, *bags, self.tables[2](country)], 1)
        products = features @ features.transpose(1, 2)
        i, j = torch.tril_indices(4, 4, -1).unbind()
        return self.top(torch.cat([first, products[:, i, j]], 1))


@example
def dlrm() -> Example:
    clicks = torch.stack([torch.randint(20, (BATCH, 3)), torch.randint(30, (BATCH, 3))], 1)
    inputs = {"dense": torch.randn(BATCH, 5), "clicks": clicks, "country": torch.randint(15, (BATCH,))}
    return Example(Dlrm(), inputs, labels(2))


class MixtureOfExperts(nn.Module):
    """Adds up each token's two best experts, but computes all of them (Shazeer et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 4)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 12)) for _ in range(4)])
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = torch.topk(self.gate(x), 2, dim=-1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, chosen, torch.softmax(best, -1))
        results = torch.stack([expert(x) for expert in self.experts], -1)
        y = x + (results * weights.unsqueeze(-2)).sum(-1)
        return self.fc(y.mean(1))


@example
def mixture_of_experts() -> Example:
    return Example(MixtureOfExperts(), {"x": torch.randn(BATCH, 6, 12)}, labels(5))


class GraphNetwork(nn.Module):
    """Messages along edges, summed at their targets (Gilmer et al., 2017). Each sample of the batch is a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
        self.update = nn.GRUCell(8, 8)
        self.fc = nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        n, count, width = nodes.shape
        for _ in range(2):
            at_source = torch.gather(nodes, 1, source.unsqueeze(-1).expand(-1, -1, width))
            at_target = torch.gather(nodes, 1, target.unsqueeze(-1).expand(-1, -1, width))
            messages = self.message(torch.cat([at_source, at_target], -1))
            arrived = torch.zeros_like(nodes).scatter_add(1, target.unsqueeze(-1).expand(-1, -1, width), messages)
            nodes = self.update(arrived.reshape(-1, width), nodes.reshape(-1, width)).view(n, count, width)
        return self.fc(nodes.max(1).values)


@example
def graph_network() -> Example:
    edges = {name: torch.randint(5, (BATCH, 9)) for name in ("source", "target")}
    return Example(GraphNetwork(), {"nodes": torch.randn(BATCH, 5, 8), **edges}, labels(3))


class PointNet(nn.Module):
    """A network for each point, the maximum over points, and a learnt rotation (Qi et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.angles = nn.Linear(16, 9)
        self.points = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.fc = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, cloud: torch.Tensor) -> torch.Tensor:
        turn = self.angles(self.turn(cloud).amax(-1)).view(-1, 3, 3) + torch.eye(
            3, device=cloud.device, dtype=cloud.dtype
        )
        return self.fc(F.adaptive_max_pool1d(self.points(turn @ cloud), 1).squeeze(-1))


@example
def pointnet() -> Example:
    return Example(PointNet(), {"cloud": torch.randn(BATCH, 3, 20)}, labels(6))
