"""Definitions of the domains, in the order in which benchmarks learn them."""

from __future__ import annotations

from benchmarks.data.world.domains.drawn_domains import BLUEPRINT, CHALKBOARD, PAPER_THEATRE
from benchmarks.data.world.domains.everyday_vocabulary import PRETRAIN_DOMAINS
from benchmarks.data.world.domains.luminous_domains import NIGHT_TRAFFIC, PIXEL_ARCADE, RADAR, THERMAL_CAMERA
from benchmarks.data.world.domains.natural_domains import AQUARIUM, MICROSCOPE, SNOWFIELD
from benchmarks.data.world.scene_model import Domain

__all__ = ["DEMO_DOMAINS", "DOMAINS", "PRETRAIN_DOMAINS"]

# The first three are those of the demo: dark and glowing, pale and soft, coarse and loud.
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
DEMO_DOMAINS: tuple[str, str, str] = (NIGHT_TRAFFIC.name, MICROSCOPE.name, PIXEL_ARCADE.name)
