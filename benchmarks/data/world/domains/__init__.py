"""The domains, in the order in which tests and measurements use them."""

from __future__ import annotations

from benchmarks.data.world.domains.everyday_vocabulary import PRETRAIN_DOMAINS
from benchmarks.data.world.domains.luminous_domains import NIGHT_TRAFFIC, PIXEL_ARCADE, RADAR
from benchmarks.data.world.domains.natural_domains import MICROSCOPE, SNOWFIELD
from benchmarks.data.world.scene_model import Domain

__all__ = ["DOMAINS", "PRETRAIN_DOMAINS"]

DOMAINS: dict[str, Domain] = {
    domain.name: domain for domain in (NIGHT_TRAFFIC, MICROSCOPE, PIXEL_ARCADE, SNOWFIELD, RADAR)
}
