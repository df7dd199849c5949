"""Encoders of fine-tuned towers whose image tower has video proxies.

Video proxies are learned tokens that carry information between a video's frames (Xue et al. 2023, "CLIP-ViP: Adapting
pre-trained image-text model to video-language alignment", section 3.3).

A video is one sequence: the proxies, and the patches of all its frames. In every block of CLIP's image tower, a proxy
attends to the whole sequence, and a patch attends to the patches of its own frame and to the proxies. Frames therefore
exchange information only through the proxies, at a cost linear in their number. The first proxy is CLIP's class token,
and its state after the last block represents the video.

Where the paper leaves details to the published code, they follow it: the other proxies have the class token's position,
and all patches in a frame share a temporal embedding, initially zero. One detail differs: proxies start from random
numbers as small as those that CLIP's class token was initialized with. The code draws larger ones, with standard
deviation 1, and then replaces them with pre-trained ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.open_clip_backbone import require_clip_blocks
from models.backbones.tower_computation import forward_precision
from models.encoders.families.tower_family import TOWER_FAMILY, TowerVideoEncoder
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix


class VideoProxies(nn.Module):
    """A video's learned tokens in addition to CLIP's own.

    Args:
        backbone: CLIP backbone with open blocks.
        count: Number K of proxies, including the class token.

    Attributes:
        added: Proxies in addition to the class token, ``[K-1, width]``.
        times: Temporal embedding, ``[frames, width]``.

    Raises:
        BackboneUnsupported: The backbone's blocks are not those of CLIP.
    """

    def __init__(self, backbone: Backbone, count: int) -> None:
        super().__init__()
        require_clip_blocks(backbone)
        width = backbone.visual_width
        self.added = nn.Parameter(torch.randn(count - 1, width) / width**0.5)
        self.times = nn.Parameter(torch.zeros(backbone.spec.frames, width))


def encode_with_proxies(backbone: Backbone, frames: Tensor, proxies: VideoProxies) -> Tensor:
    """Compute unit video vectors ``[n, dim]`` of frames ``uint8 [n, M, H, W, 3]``."""
    with forward_precision(backbone.device):
        shared, patches = _embed(backbone, frames, proxies)
        for block in backbone.visual_blocks:
            shared, patches = _run_block(block, shared, patches)
    visual = backbone.clip.visual
    return F.normalize(visual.ln_post(shared[:, 0].float()) @ visual.proj, dim=-1)


def _embed(backbone: Backbone, frames: Tensor, proxies: VideoProxies) -> tuple[Tensor, Tensor]:
    """Build the first block's input: proxies ``[n, K, width]`` and patches ``[n, M, P, width]``."""
    visual = backbone.clip.visual
    n, m = frames.shape[:2]
    grid = visual.conv1(backbone.pixels(frames)).flatten(2).transpose(1, 2)  # [n·M, P, width]
    patches = grid.unflatten(0, (n, m)) + visual.positional_embedding[1:] + proxies.times[:, None]
    shared = torch.cat([visual.class_embedding[None], proxies.added]) + visual.positional_embedding[0]
    return visual.ln_pre(shared.expand(n, -1, -1)), visual.ln_pre(patches)


def _run_block(block: ResidualAttentionBlock, shared: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Run a block with proxy-guided attention; shapes as in :func:`_embed`."""
    n, m, p, _ = patches.shape
    own, proxies = block.ln_1(patches), block.ln_1(shared)
    sequence = torch.cat([proxies, own.flatten(1, 2)], dim=1)  # [n, K + M·P, width]
    frame_context = torch.cat([proxies.unsqueeze(1).expand(-1, m, -1, -1), own], dim=2)
    frame_context = frame_context.flatten(0, 1)  # [n·M, K + P, width]
    shared = shared + block.ls_1(block.attention(proxies, sequence, sequence))
    attended = block.attention(own.flatten(0, 1), frame_context, frame_context).view(n, m, p, -1)
    patches = patches + block.ls_1(attended)
    shared = shared + block.ls_2(block.mlp(block.ln_2(shared)))
    return shared, patches + block.ls_2(block.mlp(block.ln_2(patches)))


_PROXIES = "proxies."


class ProxyVideoEncoder(TowerVideoEncoder):
    """A fine-tuned image tower with video proxies."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        tower, tensors = self._load_tower(release), tensors_with_prefix(_PROXIES, release.tensors)
        proxies = VideoProxies(self._backbone, len(tensors["added"]) + 1)
        proxies.load_state_dict(tensors)
        proxies.to(self._backbone.device)
        return lambda frames: encode_with_proxies(tower, frames, proxies)


PROXY_FAMILY = replace(
    TOWER_FAMILY,
    kind="proxies",
    video_encoder=ProxyVideoEncoder,
    video_prefixes=(*TOWER_FAMILY.video_prefixes, _PROXIES),
)
