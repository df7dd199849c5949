"""Domains for choosing settings in worlds with shared words; they share no word list with the benchmark domains.

The objects are drawings from the everyday vocabulary under other names.
"""

from __future__ import annotations

from benchmarks.data.world.domains.domain_notation import hue, setting
from benchmarks.data.world.domains.everyday_vocabulary import SHAPE_ENTITIES, THINGS, VERBS
from benchmarks.data.world.scene_model import Domain, Entity, Hue, Setting, Style

_DRAWINGS = {thing.name: thing for thing in (*SHAPE_ENTITIES, *THINGS)}
_SIZES = {"small": ("wee", "dainty"), "large": ("vast", "hefty")}

# Verbs: the domain with number i has the verbs i and i + 1 of each motion.
_VERBS = {
    "left": "wander | left; hurry | left; row | left; parade | left; nudge | left; stroll | left",
    "right": "wander | right; hurry | right; row | right; parade | right; nudge | right; stroll | right",
    "up": "levitate; clamber | up; launch; leap | up; tower; hike | up",
    "down": "droop; sag; capsize; topple; crumple; duck",
    "clockwise": "stir | clockwise; ramble | clockwise; steer | clockwise; chase | clockwise; wind | clockwise; jog | clockwise",
    "counterclockwise": "stir | counter-clockwise; ramble | counter-clockwise; steer | counter-clockwise; chase | counter-clockwise; wind | counter-clockwise; jog | counter-clockwise",
    "bounce": "shudder; gallop; lurch; trampoline; jolt; prance",
    "grow": "thicken; bloom; inflate; stretch; magnify; fatten",
    "shrink": "crumble; wither; compress; wane; taper; reduce",
    "appear": "materialise; sprout; unveil | itself; debut; assemble; awaken",
    "vanish": "evaporate; perish; retire; flee; crash; expire",
    "spin": "whisk; reel; crank; twiddle; corkscrew; circulate",
    "zigzag": "quiver; stagger; rock | from side to side; teeter; rattle; jerk",
    "blink": "glisten; gleam; stutter; sparkle; sputter; beat",
    "stop": "doze; remain; loiter; hush; stall; nap",
}  # fmt: skip


def _verbs(number: int) -> dict[str, tuple[str, ...]]:
    verbs = {motion: [phrase.strip() for phrase in text.split(";")] for motion, text in _VERBS.items()}
    return {
        motion: (verbs[motion][number], verbs[motion][(number + 1) % len(verbs[motion])]) for motion in VERBS
    }


def _domain(
    name: str,
    about: str,
    style: Style,
    things: str,
    hues: tuple[Hue, ...],
    settings: tuple[Setting, ...],
    number: int,
) -> Domain:
    """Define a domain with objects in the notation ``"loaf/bread = half; …"``: words, and the name of a drawing."""
    parsed = []
    for line in things.split(";"):
        words, drawing = (piece.strip() for piece in line.split("="))
        parsed.append(Entity(tuple(words.split("/")), _DRAWINGS[drawing].drawing, _DRAWINGS[drawing].gloss))
    return Domain(
        name, about, style, tuple(parsed[:3]), hues, settings, _verbs(number), tuple(parsed[3:]), _SIZES
    )


TUNING_DOMAINS = {
    domain.name: domain
    for domain in (
        _domain(
            "bakery", "pastry in warm light", Style(shadow=0.02, grain=3),
            "loaf/bread = half circle; bagel/doughnut = ring; cupcake/muffin = cake; pretzel/waffle = spiral; "
            "scone/biscuit = hexagon; tart/pie = crescent; ladle/spatula = hammer",
            (hue("toasted/crusty", "#b4783c"), hue("cherry/jammy", "#c02040"), hue("vanilla/creamy", "#f4e6b4"), hue("cocoa/chocolate", "#5a3020"), hue("saffron/custard", "#f0b820"), hue("pistachio/sugary", "#a0c878")),
            (setting("in the oven/inside the stove", "#f0d8b0", "#e0b880", "square 0 .9 1.2 .16 #9a5c34;"), setting("in the pantry/by the till", "#fff4e0", "#f4dcc0", pattern="checks", pattern_color="#ecd0ac"), setting("on the tray/on a rack", "#d8d0c8", "#b8aca0", pattern="stripes", pattern_color="#c8bcb0")),
            0,
        ),
        _domain(
            "orchard", "harvest under an open sky", Style(blur=0.004, line=0.008),
            "pear/quince = drop; tractor/plough = car; beehive/hive = half circle; barrel/cask = bottle; "
            "basket/hamper = arch; scarecrow/dummy = robot; goose/swan = bird",
            (hue("ripe/ruddy", "#d43c28"), hue("mossy/leafy", "#4a8c34"), hue("wheaten/straw", "#e4c864"), hue("bruised/prune", "#6a3a6c"), hue("loamy/earthen", "#7c5430"), hue("dewy/celery", "#8cd0c0")),
            (setting("between the rows/under the branches", "#bce0f4", "#e4f0d8", "square 0 .85 1.2 .3 #7cae50;"), setting("by the barn/at the gate", "#d8e8f0", "#f0e4cc", "square .6 .1 .4 .7 #a04834; square 0 .9 1.2 .2 #98b868;"), setting("along the hedge/in the furrow", "#cce4c4", "#a0c488", pattern="stripes", pattern_color="#8cb474")),
            1,
        ),
        _domain(
            "harbour", "boats and cargo on gray water", Style(line=0.014, opacity=0.95),
            "tug/tugboat = boat; crate/parcel = square; lighthouse/beacon = lamp; dinghy/canoe = crescent; "
            "gull/pelican = bird; net/trawl = diamond; oar/paddle = bar",
            (hue("rusty/rusted", "#b04c20"), hue("tarred/pitchy", "#24242c"), hue("brass/brassy", "#d8a83c"), hue("canvas/sailcloth", "#ece4d0"), hue("oilskin/mustardy", "#f0d428"), hue("kelpy/briny", "#2c7c6c")),
            (setting("along the quay/at the pier", "#b8c8d0", "#8ca4b0", "square 0 .85 1.2 .25 #6c5c4c;"), setting("off the jetty/beyond the breakwater", "#9cb8cc", "#5c88a4", "wave 0 .6 1.2 .12 #487490;"), setting("in the mist/in the drizzle", "#d0d8dc", "#c0ccd0", pattern="specks", pattern_color="#e4eaec")),
            2,
        ),
        _domain(
            "circus", "acts before bright stripes", Style(line=0.016, line_role="main", fill=True, vignette=0.5),
            "juggler/acrobat = face; elephant/pony = apple; tambourine/gong = circle; cannon/mortar = bottle; "
            "tent/marquee = triangle; unicycle/tricycle = wheel; monkey/poodle = ghost",
            (hue("spangled/glittery", "#f0c830"), hue("velvet/plush", "#a0143c"), hue("candy/bubblegum", "#ff78b0"), hue("powdery/floury", "#f8f4f0"), hue("feathered/parrot", "#30a0e0"), hue("satin/taffeta", "#7830b0")),
            (setting("in the arena/beneath the canopy", "#f4e0d0", "#e4c4a8", pattern="stripes", pattern_color="#e0907c"), setting("at the parade/in the procession", "#e8f0ff", "#c8d8f4", "square 0 .9 1.2 .16 #b09878;"), setting("at rehearsal/backstage", "#503048", "#382038", pattern="dots", pattern_color="#684060")),
            3,
        ),
        _domain(
            "workshop", "tools on wood", Style(shadow=0.015, grain=8, blur=0.003),
            "anvil/vise = half circle; saw/hacksaw = zigzag line; drill/auger = rocket; trestle/bench = arch; "
            "toolbox/satchel = cup; pliers/tongs = cross; clamp/wrench = key",
            (hue("galvanised/zinc", "#a8b0b8"), hue("coppery/bronzed", "#c47038"), hue("enamelled/lacquered", "#c82c2c"), hue("greasy/oily", "#30342c"), hue("sanded/timber", "#d8b078"), hue("anodised/cobalt", "#2848b4")),
            (setting("on the workbench/in the garage", "#c8a878", "#b08c5c", pattern="stripes", pattern_color="#b89868"), setting("among the shavings/in the sawdust", "#e4d0a8", "#d4bc8c", pattern="specks", pattern_color="#f0e0bc"), setting("at the forge/by the furnace", "#402c28", "#703820", "square 0 .95 1.2 .2 #c85820;")),
            4,
        ),
        _domain(
            "park", "a sunny afternoon in town", Style(opacity=0.96, glow=0.1),
            "pigeon/sparrow = bird; kiosk/booth = house; fountain/sprinkler = umbrella; pram/stroller = train; "
            "frisbee/football = oval; puppy/terrier = fish; squirrel/hedgehog = mushroom",
            (hue("sunlit/summery", "#f8dc50"), hue("shady/dusky", "#404c5c"), hue("muddy/puddled", "#806040"), hue("lavender/heathery", "#b090e0"), hue("concrete/pavement", "#a0a09c"), hue("clover/grassy", "#58a840")),
            (setting("on the lawn/across the lawn", "#c4e8ff", "#b0dc90", "square 0 .8 1.2 .35 #88c060;"), setting("at the sandpit/by the railings", "#e8f4ff", "#f0dca8", "square 0 .85 1.2 .25 #e4c880;"), setting("along the avenue/through the alley", "#e0e4e8", "#c8ccd0", "square -.9 .1 .15 .9 #78906c; square .9 .1 .15 .9 #78906c;")),
            5,
        ),
    )
}  # fmt: skip
