"""Everyday vocabulary for pre-training, without the style or jargon of any benchmark domain."""

from __future__ import annotations

from benchmarks.data.world.scene_model import Domain, Entity, Hue, Setting, Style, parse_drawing


def _shape(words: str, shape: str, rx: float = 1, ry: float = 1) -> Entity:
    names = tuple(words.split("/"))
    return Entity(names, parse_drawing(f"{shape} 0 0 {rx} {ry} main"), names[0])


def _thing(words: str, drawing: str) -> Entity:
    names = tuple(words.split("/"))
    return Entity(names, parse_drawing(drawing), names[0])


SHAPE_ENTITIES = (
    _shape("circle/disc/disk/round shape/dot", "circle"),
    _shape("square/block/box", "square", 0.85, 0.85),
    _shape("triangle/three-sided shape", "triangle"),
    _shape("star/five-pointed star", "star"),
    _shape("ring/hoop/loop/open circle", "ring", 0.85, 0.85),
    _shape("cross/plus sign/plus", "cross"),
    _shape("bar/rectangle/plank", "square", 1, 0.36),
    _shape("diamond/rhombus", "diamond"),
    _shape("hexagon/six-sided shape", "hexagon"),
    _shape("pentagon", "pentagon"),
    _shape("heart", "heart"),
    _shape("arrow/pointer", "arrow"),
    _shape("crescent/moon/half moon", "crescent"),
    _shape("oval/ellipse/egg", "circle", 1, 0.62),
    _shape("half circle/dome", "half", 1, 0.6),
    _shape("drop/droplet/raindrop", "drop"),
    _shape("gear/cog", "gear"),
    _shape("zigzag line", "zigzag", 1, 0.6),
    _shape("spiral/swirl/coil", "spiral"),
    _shape("arch", "arc", 0.9, 0.8),
    _shape("lightning/flash of lightning", "lightning"),
    _shape("wavy line/ripple", "wave", 1, 0.5),
)

THINGS = (
    _thing(
        "car/automobile",
        "trapezoid 0 -.3 .55 .35 light; square 0 .15 1 .3 main; circle -.55 .5 .28 .28 #222222; circle .55 .5 .28 .28 #222222",
    ),
    _thing("house/home/hut", "square 0 .35 .75 .6 main; triangle 0 -.6 1 .45 dark; square 0 .6 .2 .35 light"),
    _thing("tree", "square 0 .65 .14 .35 #7a5230; circle 0 -.2 .7 .75 main; circle -.25 -.35 .25 .25 light"),
    _thing(
        "flower/blossom",
        "circle -.5 0 .4 .4 main; circle .5 0 .4 .4 main; circle 0 -.5 .4 .4 main; circle 0 .5 .4 .4 main; circle 0 0 .33 .33 light",
    ),
    _thing(
        "fish", "circle -.2 0 .75 .48 main; triangle .75 0 .42 .35 dark -90; circle -.55 -.1 .1 .1 #111111"
    ),
    _thing(
        "boat/ship",
        "trapezoid 0 .55 .95 .35 main 180; square 0 -.2 .05 .7 dark; wedge -.35 -.25 .33 .55 light",
    ),
    _thing("sun", "burst 0 0 1 1 main; circle 0 0 .55 .55 light"),
    _thing("cloud", "circle -.45 .15 .5 .4 main; circle .45 .15 .5 .4 main; circle 0 -.15 .55 .5 main"),
    _thing("cup/mug", "ring .65 .05 .35 .4 dark; square -.1 0 .6 .75 main; square -.1 -.65 .6 .12 light"),
    _thing(
        "face/head",
        "circle 0 0 1 1 main; circle -.35 -.25 .14 .18 #111111; circle .35 -.25 .14 .18 #111111; square 0 .4 .4 .08 #111111",
    ),
    _thing(
        "flag/banner", "square -.8 0 .08 1 dark; square .15 -.5 .85 .45 main; square .15 -.5 .85 .14 light"
    ),
    _thing(
        "balloon", "circle 0 -.25 .65 .72 main; stroke 0 .72 .3 .1 dark 90; circle -.22 -.5 .14 .18 light"
    ),
    _thing("wheel/tyre", "circle 0 0 1 1 dark; circle 0 0 .7 .7 main; cross 0 0 .65 .65 light"),
    _thing(
        "mushroom/toadstool",
        "square 0 .5 .28 .5 light; half 0 -.2 1 .65 main; circle -.35 -.2 .14 .14 light; circle .35 -.25 .14 .14 light",
    ),
    _thing(
        "key",
        "ring -.55 0 .38 .38 main; square .4 0 .6 .11 main; square .6 .25 .1 .2 main; square .88 .25 .1 .2 main",
    ),
    _thing("hammer", "square 0 .3 .13 .7 dark; square 0 -.55 .65 .28 main"),
    _thing("bottle", "square 0 .3 .5 .7 main; square 0 -.6 .18 .35 dark; square 0 .35 .5 .2 light"),
    _thing("umbrella/parasol", "half 0 -.3 1 .65 main; square 0 .4 .06 .6 dark; circle .14 .92 .16 .1 dark"),
    _thing(
        "robot",
        "square 0 .45 .6 .5 main; square 0 -.4 .5 .35 light; circle -.2 -.42 .1 .1 #111111; circle .2 -.42 .1 .1 #111111; square 0 -.85 .05 .14 dark",
    ),
    _thing(
        "ladder",
        "square -.5 0 .1 1 main; square .5 0 .1 1 main; square 0 -.6 .5 .09 dark; square 0 0 .5 .09 dark; square 0 .6 .5 .09 dark",
    ),
    _thing(
        "butterfly/moth",
        "circle -.5 -.3 .48 .5 main; circle .5 -.3 .48 .5 main; circle -.4 .45 .35 .4 light; circle .4 .45 .35 .4 light; square 0 0 .1 .75 dark",
    ),
    _thing(
        "train/wagon",
        "square 0 0 1 .45 main; square -.5 -.1 .22 .2 light; square .15 -.1 .22 .2 light; circle -.55 .6 .2 .2 dark; circle .55 .6 .2 .2 dark",
    ),
    _thing(
        "rocket/spaceship",
        "triangle 0 -.7 .4 .32 dark; square 0 .05 .4 .5 main; wedge -.6 .55 .22 .35 dark; wedge .6 .55 -.22 .35 dark; triangle 0 .8 .28 .25 light 180",
    ),
    _thing(
        "bird",
        "circle -.05 .1 .6 .42 main; circle .5 -.3 .3 .3 main; triangle .9 -.28 .14 .16 #e8a020 90; wedge -.15 -.35 .45 .35 dark; circle .56 -.36 .07 .07 #111111",
    ),
    _thing(
        "cake",
        "square 0 .4 .9 .5 main; square 0 -.1 .9 .14 light; square 0 -.5 .06 .3 dark; drop 0 -.88 .1 .14 #ffb030",
    ),
    _thing("lamp", "trapezoid 0 -.45 .75 .45 main; square 0 .35 .08 .5 dark; square 0 .88 .5 .1 dark"),
    _thing(
        "apple",
        "circle -.25 .15 .6 .7 main; circle .25 .15 .6 .7 main; square .05 -.7 .06 .25 #5a3a1a; circle .35 -.7 .28 .12 light",
    ),
    _thing(
        "ghost",
        "circle 0 -.2 .75 .75 main; square 0 .4 .75 .5 main; circle -.28 -.3 .15 .2 #111111; circle .28 -.3 .15 .2 #111111",
    ),
)

HUES = (
    Hue(("red", "red", "scarlet", "crimson"), (222, 40, 44)),
    Hue(("orange", "orange", "tangerine"), (245, 140, 32)),
    Hue(("yellow", "yellow", "golden"), (248, 216, 48)),
    Hue(("green", "green", "grass green"), (52, 168, 70)),
    Hue(("lime", "lime", "bright green"), (168, 228, 52)),
    Hue(("cyan", "cyan", "turquoise", "light blue"), (60, 208, 220)),
    Hue(("blue", "blue", "royal blue"), (44, 88, 216)),
    Hue(("navy", "navy", "dark blue"), (28, 36, 116)),
    Hue(("purple", "purple", "violet"), (136, 60, 184)),
    Hue(("magenta", "magenta"), (214, 40, 168)),
    Hue(("pink", "pink", "rosy"), (250, 156, 190)),
    Hue(("brown", "brown"), (128, 78, 40)),
    Hue(("black", "black"), (24, 24, 28)),
    Hue(("white", "white"), (246, 246, 246)),
    Hue(("grey", "grey", "gray"), (138, 140, 146)),
)

SIZES = {"small": ("small", "little", "tiny"), "large": ("large", "big", "huge")}

VERBS = {
    "left": ("move | left", "move | to the left", "go | left", "travel | to the left", "slide | left", "move | from right to left"),
    "right": ("move | right", "move | to the right", "go | right", "travel | to the right", "slide | right", "move | from left to right"),
    "up": ("move | up", "go | up", "move | upwards", "climb | up", "travel | to the top"),
    "down": ("move | down", "go | down", "move | downwards", "fall | down", "travel | to the bottom"),
    "clockwise": ("circle | clockwise", "move | in a clockwise circle", "go | round clockwise"),
    "counterclockwise": ("circle | counter-clockwise", "move | in a counter-clockwise circle", "go | round anticlockwise"),
    "bounce": ("bounce", "bounce | up and down", "jump", "hop"),
    "grow": ("grow", "get | bigger", "become | larger", "zoom | in"),
    "shrink": ("shrink", "get | smaller", "become | smaller", "zoom | out"),
    "appear": ("appear", "show | up", "come | into view"),
    "vanish": ("vanish", "disappear", "go | away"),
    "spin": ("spin", "spin | around", "rotate", "turn | round and round"),
    "zigzag": ("zigzag", "wiggle | from side to side", "shake | from side to side", "swing | left and right"),
    "blink": ("blink", "flash | on and off", "flicker"),
    "stop": ("stop", "stay | still", "stand | still", "rest", "wait"),
}  # fmt: skip

_PLAIN = Setting(("on a plain background",), (236, 236, 232), (236, 236, 232))


def _plain(
    name: str, about: str, style: Style, settings: tuple[Setting, ...], entities: tuple[Entity, ...]
) -> Domain:
    return Domain(name, about, style, entities, HUES, settings, VERBS, sizes=SIZES)


PRETRAIN_DOMAINS = {
    domain.name: domain
    for domain in (
        _plain("plain-shapes", "flat shapes on light ground", Style(), (_PLAIN,), SHAPE_ENTITIES[:12]),
        _plain(
            "poster", "flat shapes on coloured stripes", Style(line=0.012),
            (Setting(("on stripes", "over a striped background"), (250, 226, 190), (250, 226, 190), (), "stripes", (240, 206, 160)),),
            SHAPE_ENTITIES,
        ),
        _plain(
            "toy-box", "everyday things in a pale room", Style(shadow=0.012),
            (Setting(("indoors", "in a room"), (214, 226, 236), (236, 222, 200), parse_drawing("square 0 .85 1.2 .3 #c9a77c")),),
            THINGS[:14],
        ),
        _plain(
            "meadow", "everyday things on a meadow", Style(blur=0.004),
            (Setting(("on a meadow", "on the grass"), (188, 224, 244), (216, 238, 240), parse_drawing("square 0 .75 1.2 .4 #9fce7f")),),
            THINGS[14:],
        ),
        _plain(
            "felt", "soft things on dotted cloth", Style(line=0.02, line_role="main", grain=9),
            (Setting(("on dotted cloth", "on a dotted background"), (92, 84, 110), (92, 84, 110), (), "dots", (122, 112, 140)),),
            THINGS[::2],
        ),
        _plain(
            "evening", "shapes before a plain dark wall", Style(vignette=0.5),
            (Setting(("on a dark background", "in the dark"), (40, 40, 48), (58, 52, 58)),),
            SHAPE_ENTITIES[::2],
        ),
    )
}  # fmt: skip
