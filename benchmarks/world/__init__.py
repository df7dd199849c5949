"""The video world: seeded short videos of simple things that move, with captions that say what happens in order."""

from __future__ import annotations

from benchmarks.world.domains.everyday import PRETRAIN_DOMAINS
from benchmarks.world.painter import render
from benchmarks.world.pretraining import sample_pretraining_clip
from benchmarks.world.semantics import Clip, Domain, Scene

__all__ = ["PRETRAIN_DOMAINS", "Clip", "Domain", "Scene", "render", "sample_pretraining_clip"]
