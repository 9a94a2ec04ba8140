"""Recurrent networks, dilated convolutions in time, sequence to sequence, and PyTorch's encoder."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from registry import BATCH, Example, example, labels, language_model, tokens
from torch import nn

VOCABULARY, LENGTH, WIDTH = 30, 7, 12


class RecurrentLanguageModel(nn.Module):
    """An embedding, recurrent layers, and the logits of the next token."""

    def __init__(
        self, kind: type[nn.Module], layers: int = 1, bidirectional: bool = False, given_state: bool = False
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = kind(WIDTH, WIDTH, layers, batch_first=True, bidirectional=bidirectional)
        self.fc = nn.Linear(directions * WIDTH, VOCABULARY)
        self.state = nn.Parameter(torch.randn(directions * layers, 1, WIDTH)) if given_state else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, state = self.embedding(tokens), None
        if self.state is not None:
            first = self.state.expand(-1, tokens.shape[0], -1).contiguous()
            state = (first, torch.tanh(first)) if isinstance(self.recurrent, nn.LSTM) else first
        return self.fc(self.recurrent(x, state)[0]).transpose(1, 2)


def recurrent(kind: type[nn.Module], **options: Any) -> Example:
    return language_model(RecurrentLanguageModel(kind, **options), VOCABULARY, LENGTH)


@example
def lstm() -> Example:
    return recurrent(nn.LSTM)


@example
def lstm_stacked_both_ways() -> Example:
    return recurrent(nn.LSTM, layers=2, bidirectional=True)


@example
def lstm_initial_state() -> Example:
    return recurrent(nn.LSTM, given_state=True)


@example
def gru() -> Example:
    return recurrent(nn.GRU, layers=2, given_state=True)


@example
def gru_both_ways() -> Example:
    return recurrent(nn.GRU, bidirectional=True)


@example
def rnn() -> Example:
    return recurrent(nn.RNN, layers=2, given_state=True)


class SequenceToSequence(nn.Module):
    """One GRU reads, another writes and attends to what the first has read (Bahdanau et al., 2014), with products as
    scores."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.fc = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        read, state = self.encoder(self.source(source))
        written, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(written @ read.transpose(1, 2), -1)
        return self.fc(torch.cat([written, weights @ read], -1)).transpose(1, 2)


@example
def sequence_to_sequence() -> Example:
    inputs = {"source": tokens(VOCABULARY, LENGTH), "target": tokens(VOCABULARY, LENGTH - 2)}
    return Example(SequenceToSequence(), inputs, labels(VOCABULARY, LENGTH - 2))


class WaveNet(nn.Module):
    """Gated convolutions of growing dilation that see only the past (van den Oord et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.dilations = (1, 2, 4)
        self.gates = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=d) for d in self.dilations])
        self.residuals = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)])
        self.out = nn.Conv1d(8, 16, 1)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        x, total = self.first(wave), torch.tensor(0.0)
        layers = zip(self.dilations, self.gates, self.residuals, self.skips, strict=True)
        for dilation, gate, residual, skip in layers:
            y = gate(F.pad(x, (dilation, 0)))
            filtered, gated = y.chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gated)
            x, total = x + residual(y), total + skip(y)
        return self.out(torch.relu(total))


@example
def wavenet() -> Example:
    return Example(WaveNet(), {"wave": torch.randn(BATCH, 1, 32)}, labels(16, 32))


class Encoder(nn.Module):
    """PyTorch's encoder layers between an embedding and a mean over the length. The batch is the first or second
    dimension."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=batch_first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(WIDTH, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        return self.fc(self.layers(self.embedding(tokens)).mean(1 if self.batch_first else 0))


def encoder(batch_first: bool) -> Example:
    return Example(Encoder(batch_first), {"tokens": tokens(VOCABULARY, LENGTH)}, labels(10))


@example
def encoder_batch_first() -> Example:
    return encoder(batch_first=True)


@example
def encoder_length_first() -> Example:
    return encoder(batch_first=False)
