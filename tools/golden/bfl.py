"""The transformer in the single-file layout of Black Forest Labs: fused QKV, fused single-block input, (shift, scale) order.

`to_bfl` only renames, joins and exchanges halves, so a loader that undoes it must find the very bits of the folder.
`check` runs diffusers' own converter over the result and compares every tensor with the folder's.
"""
import inspect

import torch
from diffusers.loaders import single_file_utils

TOP = {
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "context_embedder": "txt_in",
    "x_embedder": "img_in",
    "proj_out": "final_layer.linear",
}
DOUBLE = {
    "norm1.linear": "img_mod.lin", "norm1_context.linear": "txt_mod.lin",
    "attn.to_out.0": "img_attn.proj", "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0", "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0", "ff_context.net.2": "txt_mlp.2",
}
DOUBLE_SCALE = {
    "attn.norm_q": "img_attn.norm.query_norm", "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm", "attn.norm_added_k": "txt_attn.norm.key_norm",
}
DOUBLE_JOIN = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}


def to_bfl(state: dict, num_double: int, num_single: int) -> dict:
    left = dict(state)
    out = {}

    def join(target: str, sources: list[str]) -> None:
        for kind in ("weight", "bias"):
            out[f"{target}.{kind}"] = torch.cat([left.pop(f"{source}.{kind}") for source in sources])

    for source, target in TOP.items():
        if f"{source}.weight" in left:
            join(target, [source])
    for kind in ("weight", "bias"):
        scale, shift = left.pop(f"norm_out.linear.{kind}").chunk(2)
        out[f"final_layer.adaLN_modulation.1.{kind}"] = torch.cat([shift, scale])
    for i in range(num_double):
        a, b = f"transformer_blocks.{i}", f"double_blocks.{i}"
        for source, target in DOUBLE.items():
            join(f"{b}.{target}", [f"{a}.{source}"])
        for source, target in DOUBLE_SCALE.items():
            out[f"{b}.{target}.scale"] = left.pop(f"{a}.{source}.weight")
        for target, sources in DOUBLE_JOIN.items():
            join(f"{b}.{target}", [f"{a}.{source}" for source in sources])
    for i in range(num_single):
        a, b = f"single_transformer_blocks.{i}", f"single_blocks.{i}"
        join(f"{b}.modulation.lin", [f"{a}.norm.linear"])
        join(f"{b}.linear1", [f"{a}.{source}" for source in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")])
        join(f"{b}.linear2", [f"{a}.proj_out"])
        for source, target in (("attn.norm_q", "norm.query_norm"), ("attn.norm_k", "norm.key_norm")):
            out[f"{b}.{target}.scale"] = left.pop(f"{a}.{source}.weight")
    assert not left, sorted(left)
    return {name: tensor.contiguous() for name, tensor in out.items()}


def check(single_file: dict, folder: dict, inner_dim: int) -> None:
    """Fails unless diffusers converts `single_file` to exactly `folder`."""
    # The converter has the width of the published model written into it; the text of the function is run with ours.
    text = inspect.getsource(single_file_utils.convert_flux_transformer_checkpoint_to_diffusers)
    assert "inner_dim = 3072" in text
    scope = dict(vars(single_file_utils))
    exec(text.replace("inner_dim = 3072", f"inner_dim = {inner_dim}"), scope)
    converted = scope["convert_flux_transformer_checkpoint_to_diffusers"](dict(single_file))
    assert converted.keys() == folder.keys(), converted.keys() ^ folder.keys()
    for name, tensor in folder.items():
        assert torch.equal(converted[name], tensor), name
