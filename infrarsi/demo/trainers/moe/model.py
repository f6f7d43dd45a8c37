"""A small mixture-of-experts GPT: pre-norm blocks of causal attention and routed experts, tied output weights."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, dropout):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.query = nn.Linear(n_embd, n_embd)
        self.key = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        mask = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        # (B, T, C) -> (B, heads, T, head size)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        # each position attends to itself and to what came before it
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v

        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.proj(y))


class Expert(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.fc = nn.Linear(n_embd, 2 * n_embd)
        self.proj = nn.Linear(2 * n_embd, n_embd)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


class MoE(nn.Module):
    """Each token goes to its top_k experts; their outputs are summed with the router's weights.

    No token is dropped. `aux_loss` holds the load-balancing loss of the last forward (Switch Transformer, eq. 4).
    """

    def __init__(self, n_embd, n_expert, top_k, dropout):
        super().__init__()
        self.n_expert = n_expert
        self.top_k = top_k
        self.router = nn.Linear(n_embd, n_expert, bias=False)
        self.experts = nn.ModuleList([Expert(n_embd) for _ in range(n_expert)])
        self.dropout = nn.Dropout(dropout)
        self.aux_loss = None

    def forward(self, x):
        B, T, C = x.size()
        flat = x.view(-1, C)
        probs = F.softmax(self.router(flat), dim=-1)
        weights, chosen = torch.topk(probs, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)

        # share of the tokens that chose an expert, times the router's mean probability of it: smallest when even
        share = F.one_hot(chosen, self.n_expert).float().sum(dim=1).mean(dim=0) / self.top_k
        self.aux_loss = self.n_expert * (share * probs.mean(dim=0)).sum()

        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            for slot in range(self.top_k):
                mask = chosen[:, slot] == index
                out[mask] += weights[mask, slot].unsqueeze(-1) * expert(flat[mask])
        return self.dropout(out.view(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size, n_expert, top_k, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size, dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.moe = MoE(n_embd, n_expert, top_k, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.moe(self.ln_2(x))
        return x


class MoEGPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, n_expert, top_k, aux_weight=0.01, dropout=0.0):
        super().__init__()
        self.block_size = block_size
        self.aux_weight = aux_weight
        self.tok_emb = nn.Embedding(vocab_size, n_embd)
        self.pos_emb = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            [Block(n_embd, n_head, block_size, n_expert, top_k, dropout) for _ in range(n_layer)]
        )
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.tok_emb.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            # residual projections start smaller, so that depth does not grow the activations (GPT-2)
            if name.endswith("proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * n_layer))

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        T = idx.size(1)
        assert T <= self.block_size, f"sequence of {T} tokens, block size is {self.block_size}"
        positions = torch.arange(T, device=idx.device)
        x = self.drop(self.tok_emb(idx) + self.pos_emb(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
            if self.training:
                aux_loss = sum(block.moe.aux_loss for block in self.blocks) / len(self.blocks)
                loss = loss + self.aux_weight * aux_loss
        return logits, loss
