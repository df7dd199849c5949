"""The video world: short seeded videos of moving objects, with captions that describe the order of events."""

from __future__ import annotations

from benchmarks.data.world.domain_clips import make_domain
from benchmarks.data.world.domains import DOMAINS, PRETRAIN_DOMAINS
from benchmarks.data.world.pretraining_clips import sample_pretraining_clip
from benchmarks.data.world.renderer import render, write_mp4
from benchmarks.data.world.scene_model import Clip, Domain, Scene

__all__ = [
    "DOMAINS", "PRETRAIN_DOMAINS", "Clip", "Domain", "Scene", "make_domain", "render",
    "sample_pretraining_clip", "write_mp4",
]  # fmt: skip
