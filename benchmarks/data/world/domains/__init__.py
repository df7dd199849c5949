"""The domains, in the order in which benchmarks learn them."""

from __future__ import annotations

from benchmarks.data.world.domains.drawn_domains import BLUEPRINT, CHALKBOARD, PAPER_THEATRE
from benchmarks.data.world.domains.everyday_vocabulary import PRETRAIN_DOMAINS
from benchmarks.data.world.domains.luminous_domains import NIGHT_TRAFFIC, PIXEL_ARCADE, RADAR, THERMAL_CAMERA
from benchmarks.data.world.domains.natural_domains import AQUARIUM, MICROSCOPE, SNOWFIELD
from benchmarks.data.world.scene_model import Domain

__all__ = ["DOMAINS", "PRETRAIN_DOMAINS"]

DOMAINS: dict[str, Domain] = {
    domain.name: domain
    for domain in (
        NIGHT_TRAFFIC,
        MICROSCOPE,
        PIXEL_ARCADE,
        BLUEPRINT,
        CHALKBOARD,
        SNOWFIELD,
        THERMAL_CAMERA,
        RADAR,
        PAPER_THEATRE,
        AQUARIUM,
    )
}
