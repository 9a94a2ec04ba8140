"""Architectures of the package transformers, as small as their configurations allow."""

from __future__ import annotations

import torch
import transformers
from registry import BATCH, Example, classifier, example, labels, language_model, tokens
from torch import nn

VOCABULARY, LENGTH = 40, 8


class Output(nn.Module):
    """A model of transformers with our names for its inputs, and one output."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body


class ClassifiesText(Output):
    def forward(self, tokens: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=tokens, attention_mask=words).logits


class PredictsTokens(Output):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=tokens, use_cache=False).logits.transpose(1, 2)


class ClassifiesImages(Output):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.body(pixel_values=image).logits


class Translates(Output):
    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=source, decoder_input_ids=target, use_cache=False).logits.transpose(1, 2)


def text_classifier(body: nn.Module) -> Example:
    words = (torch.arange(LENGTH) < torch.tensor([[8], [6], [5], [2]])).long()
    return Example(ClassifiesText(body), {"tokens": tokens(VOCABULARY, LENGTH), "words": words}, labels(3))


@example
def bert() -> Example:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return text_classifier(transformers.BertForSequenceClassification(config))


@example
def distilbert() -> Example:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=4, hidden_dim=32, max_position_embeddings=16, num_labels=3
    )
    return text_classifier(transformers.DistilBertForSequenceClassification(config))


@example
def gpt2() -> Example:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=16)
    return language_model(PredictsTokens(transformers.GPT2LMHeadModel(config)), VOCABULARY, LENGTH)


@example
def llama_of_transformers() -> Example:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    return language_model(PredictsTokens(transformers.LlamaForCausalLM(config)), VOCABULARY, LENGTH)


@example
def t5() -> Example:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
        relative_attention_max_distance=16, decoder_start_token_id=0,
    )  # fmt: skip
    inputs = {"source": tokens(VOCABULARY, LENGTH), "target": tokens(VOCABULARY, LENGTH - 2)}
    return Example(Translates(transformers.T5ForConditionalGeneration(config)), inputs, labels(VOCABULARY, LENGTH - 2))


@example
def vit() -> Example:
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=10,
    )
    return classifier(ClassifiesImages(transformers.ViTForImageClassification(config)), size=16)


@example
def swin() -> Example:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=2, num_labels=10
    )
    return classifier(ClassifiesImages(transformers.SwinForImageClassification(config)), size=16)


assert BATCH == 4  # text_classifier has as many lengths
