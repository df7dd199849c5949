"""Video proxies: a few learned tokens that carry information between the frames of a video (Xue et al. 2023,
"CLIP-ViP: Adapting pre-trained image-text model to video-language alignment", section 3.3).

A video is one sequence: proxies, and the patches of all its frames. In every block of CLIP's image tower a proxy
attends to the whole sequence; a patch attends to the patches of its own frame and to the proxies. So frames learn
of each other through the proxies alone, at a cost that grows with their number and not with its square. The first
proxy is CLIP's class token, and its state after the last block is the video's.

What the paper leaves to the published code, and is done as there: the other proxies have the class token's position,
and all patches of a frame share a temporal embedding, zero at first. What differs: proxies start from random numbers
as small as those that CLIP's class token once started from. The code draws larger ones, of deviation 1, but then
loads pre-trained ones over them.
"""

from __future__ import annotations

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.precision import forward_precision

__all__ = ["VideoProxies", "encode_with_proxies"]


class VideoProxies(nn.Module):
    """What a video has beside CLIP's own tokens.

    Args:
        backbone: a CLIP with open blocks.
        count: M, number of proxies, the class token among them.

    Attributes:
        added: ``[M-1, width]`` proxies beside the class token.
        times: ``[frames, width]`` temporal embedding.

    Raises:
        BackboneUnsupported: the backbone's blocks are not open.
    """

    def __init__(self, backbone: Backbone, count: int) -> None:
        super().__init__()
        width = backbone.visual_blocks[0].attn.embed_dim
        self.added = nn.Parameter(torch.randn(count - 1, width) / width**0.5)
        self.times = nn.Parameter(torch.zeros(backbone.spec.frames, width))


def encode_with_proxies(backbone: Backbone, frames: Tensor, proxies: VideoProxies) -> Tensor:
    """Unit video vectors ``[n, dim]`` of ``uint8 [n, M, H, W, 3]`` frames."""
    with forward_precision(backbone.device):
        shared, patches = _embed(backbone, frames, proxies)
        for block in backbone.visual_blocks:
            shared, patches = _pass(block, shared, patches)
    visual = backbone.clip.visual
    return F.normalize(visual.ln_post(shared[:, 0].float()) @ visual.proj, dim=-1)


def _embed(backbone: Backbone, frames: Tensor, proxies: VideoProxies) -> tuple[Tensor, Tensor]:
    """Proxies ``[n, K, width]`` and patches ``[n, M, P, width]`` as they enter the first block."""
    visual = backbone.clip.visual
    n, m = frames.shape[:2]
    grid = visual.conv1(backbone.pixels(frames)).flatten(2).transpose(1, 2)  # [n·M, P, width]
    patches = grid.unflatten(0, (n, m)) + visual.positional_embedding[1:] + proxies.times[:, None]
    shared = torch.cat([visual.class_embedding[None], proxies.added]) + visual.positional_embedding[0]
    return visual.ln_pre(shared.expand(n, -1, -1)), visual.ln_pre(patches)


def _pass(block: ResidualAttentionBlock, shared: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """A block with proxy-guided attention; shapes as of :func:`_embed`."""
    n, m, p, _ = patches.shape
    own, proxies = block.ln_1(patches), block.ln_1(shared)
    everything = torch.cat([proxies, own.flatten(1, 2)], dim=1)  # [n, K + M·P, width]
    seen = torch.cat([proxies.unsqueeze(1).expand(-1, m, -1, -1), own], dim=2).flatten(
        0, 1
    )  # [n·M, K + P, width]
    shared = shared + block.ls_1(block.attention(proxies, everything, everything))
    attended = block.attention(own.flatten(0, 1), seen, seen).view(n, m, p, -1)
    patches = patches + block.ls_1(attended)
    shared = shared + block.ls_2(block.mlp(block.ln_2(shared)))
    return shared, patches + block.ls_2(block.mlp(block.ln_2(patches)))
