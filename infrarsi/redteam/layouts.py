"""Ring 2, parameters that are laid out otherwise: a fused matrix with a map that is true, and maps that are not."""

from __future__ import annotations

from infrarsi.redteam.case import UNUSED, Case, Edit, cheat, honest, model, on_both, train

_PROJECTIONS = """        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
"""
_FUSED = """        parts = self.qkv(x).split(C, dim=2)
        q, k, v = (p.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for p in parts)
"""
# Three initialised matrices become one: the same weights as before, and no random number more or less is drawn.
_FUSE = """    def fuse(self):
        parts, width = (self.query, self.key, self.value), self.proj.in_features
        self.qkv = nn.utils.skip_init(nn.Linear, width, 3 * width)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        del self.query, self.key, self.value

"""
_FORWARD = "    def forward(self, x):\n        B, T, C = x.size()\n        # (B, T, C) -> (B, heads, T, head size)\n"
_INITIAL = "    def _init_weights(self, module):\n"


def _fused(then: str = "") -> Edit:
    """Return the edit that fuses the three projections; `then` follows their use."""
    return model(
        (_FORWARD, f"{_FUSE}{_FORWARD}"),
        (_PROJECTIONS, f"{_FUSED}{then}"),
        (_INITIAL, f"        for block in self.blocks:\n            block.attn.fuse()\n\n{_INITIAL}"),
    )


def _map(parts: str) -> str:
    """Return the lines before a diff that say what the fused matrix and its bias hold."""
    lines = (f"blocks.*.attn.qkv.{k} = blocks.*.attn.{{{parts}}}.{k}; dim 0" for k in ("weight", "bias"))
    return "".join(f"State-Map: {line}\n" for line in lines)


CASES: tuple[Case, ...] = (
    *on_both(
        honest(
            "qkv-fused",
            "computes queries, keys and values by one matmul, with a map between both layouts of the weights",
            "reorder",
            _fused(),
            state_map=_map("query,key,value"),
        )
    ),
    *on_both(
        cheat(
            "qkv-unmapped",
            "fuses the three projections without a word on what the fused one holds",
            "invariant",
            "parameters",
            _fused(),
        )
    ),
    *on_both(
        cheat(
            "qkv-permuted",
            "fuses queries, keys and values, and calls the keys values in its map",
            "invariant",
            "update",
            _fused(),
            state_map=_map("query,value,key"),
        )
    ),
    *on_both(
        cheat(
            "map-drops-part",
            "leaves the values out of its map, so that nobody looks at a third of the fused matrix",
            "invariant",
            "state-map",
            _fused(),
            state_map=_map("query,key"),
        )
    ),
    *on_both(
        cheat(
            "map-freezes-part",
            "lets no gradient through the keys' part of a fused matrix, which has a true map",
            "invariant",
            "update",
            _fused("        k = k.detach()\n"),
            train(UNUSED),
            state_map=_map("query,key,value"),
        )
    ),
)
