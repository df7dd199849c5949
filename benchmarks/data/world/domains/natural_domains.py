"""Domains of living things and weather: microscope, snowfield."""

from __future__ import annotations

from benchmarks.data.world.domains.domain_notation import entity, hue, setting, verbs
from benchmarks.data.world.scene_model import Domain, Style

MICROSCOPE = Domain(
    "microscope",
    "small life in a round eyepiece",
    Style(opacity=0.78, line=0.012, line_role="main", blur=0.008, vignette=1.5, grain=4, upright=False),
    entities=(
        entity("paramecium/ciliate", "slipper-shaped swimmer", "circle 0 0 1 .5 main; burst 0 0 1 .6 main; circle .2 0 .3 .2 dark; circle -.5 -.05 .13 .13 light; circle -.2 .15 .1 .1 light"),
        entity("cell/corpuscle", "round building block of life", "circle 0 0 .98 .95 main; circle .18 .1 .36 .36 dark; circle -.45 -.35 .13 .13 light; circle -.4 .4 .1 .1 light"),
        entity("bacillus/rod/bug", "rod-shaped bacterium", "square 0 0 .72 .3 main; circle -.72 0 .3 .3 main; circle .72 0 .3 .3 main; stroke -.1 0 .5 .1 dark"),
        entity("diatom", "alga in a glass case", "diamond 0 0 1 .62 main; stroke 0 0 .9 .1 dark; stroke 0 0 .5 .1 dark 90; stroke -.4 0 .26 .1 dark 90; stroke .4 0 .26 .1 dark 90"),
        entity("spore/pollen", "prickly grain", "burst 0 0 1 1 main; circle 0 0 .5 .5 light"),
        entity("helix/spirillum", "corkscrew bacterium", "zigzag 0 0 1 .38 main; circle -1 .22 .13 .13 main; circle 1 -.22 .13 .13 main"),
    ),
    hues=(
        hue("amber/fuchsin/magenta", "#d82890"),
        hue("stained/gentian/purple", "#6e32b4"),
        hue("iodine/brownish/brown", "#96561e"),
        hue("fluorescent/luminescent/green", "#28b43c"),
        hue("methylene/ink/blue", "#2864d2"),
        hue("pale/unstained/grey", "#788c96"),
    ),
    settings=(
        setting("in pond water/in a drop of water", "#e4f0dc", "#d2e6cc", "", pattern="specks", pattern_color="#b0cca6"),
        setting("in agar/in the dish", "#fae8d2", "#f2dab8", "circle .4 -.5 .3 .26 #f6e0c4; circle -.5 .5 .4 .3 #efd4ae;"),
        setting("in plasma/in the smear", "#fae0e4", "#f4ccd4", "circle -.6 -.5 .2 .2 #f0bcc8; circle .6 .4 .22 .2 #f0bcc8; circle .1 .75 .18 .18 #f0bcc8;"),
    ),
    verbs=verbs(
        left="swim | left; glide | left",
        right="swim | right; glide | right",
        up="float | up; lift",
        down="sediment; sink",
        clockwise="gyrate | clockwise; swim | round clockwise",
        counterclockwise="gyrate | counter-clockwise; swim | round anticlockwise",
        bounce="throb | up and down; hop",
        grow="rise; swell; pulse",
        shrink="shrivel; contract",
        appear="come | into focus; hatch",
        vanish="drift | out of focus; dissolve; drop | out",
        spin="tumble; turn; roll",
        zigzag="drift; wriggle; squirm",
        blink="flash; fluoresce | on and off",
        stop="settle; lie | dormant",
    ),
    props=(
        entity("vacuole/bubble", "small bubble", "circle 0 0 .8 .8 main; circle -.25 -.25 .2 .2 light"),
        entity("fibre/filament", "thin thread", "wave 0 0 1 .3 main 30"),
        entity("crystal", "angular grain", "hexagon 0 0 .8 .9 main; stroke 0 0 .7 .1 light 60"),
    ),
    sizes={"small": ("small", "minute"), "large": ("large", "giant")},
    reserved=frozenset({"paramecium", "ciliate", "corpuscle", "bacillus", "diatom", "spore", "pollen", "spirillum", "vacuole", "filament", "stained", "unstained", "fluorescent", "iodine", "methylene", "gyrate", "sediment", "wriggle"}),
)  # fmt: skip

SNOWFIELD = Domain(
    "snowfield",
    "winter in flat pale colours",
    Style(shadow=0.012, blur=0.003),
    entities=(
        entity("snowmobile/sled", "motor sledge", "wedge .2 -.05 .75 .4 main 0; square 0 .42 .9 .16 main; square -.5 -.05 .4 .12 dark; stroke 0 .75 1 .1 dark; arc .95 .6 .2 .2 dark; square .35 -.55 .05 .3 dark -20"),
        entity("seal", "sea mammal", "circle -.05 .35 .85 .45 main; circle .5 -.25 .38 .42 main; triangle -.9 .45 .24 .26 dark -90; circle .62 -.35 .08 .08 #101010; circle .84 -.18 .1 .08 #101010; triangle .15 .75 .2 .2 dark"),
        entity("skate/ice skate", "boot with a blade", "square -.25 -.35 .32 .55 main; square .1 .25 .68 .24 main; circle .72 .25 .2 .24 main; square 0 .8 .95 .07 dark; square -.35 .6 .07 .16 dark; square .45 .6 .07 .16 dark; square -.25 -.8 .36 .12 light"),
        entity("fir/conifer", "needle tree", "triangle 0 -.5 .5 .45 main; triangle 0 0 .72 .5 main; triangle 0 .45 .9 .45 main; square 0 .92 .14 .12 #6a4424; triangle 0 -.72 .24 .22 light"),
        entity("igloo/snow hut", "round hut of snow blocks", "half 0 -.05 1 .75 main; half 0 .25 .32 .45 dark; stroke -.35 -.2 .3 .1 light; stroke .4 0 .3 .1 light; stroke 0 -.45 .35 .1 light"),
        entity("runner/skier", "person on long boards", "circle .1 -.72 .26 .26 #f0c8a0; square 0 -.12 .24 .42 main 10; square -.2 .48 .13 .32 dark 20; square .2 .48 .13 .32 dark -10; stroke 0 .88 1 .1 main; stroke .55 0 .62 .1 dark 70"),
    ),
    hues=(
        hue("cold/glacier/blue", "#1e78d2"),
        hue("hot/ember/orange", "#f07814"),
        hue("berry/cranberry/crimson", "#c81e50"),
        hue("pine/evergreen/green", "#146e46"),
        hue("coal/sooty/black", "#26262e"),
        hue("dusk/plum/purple", "#7c50b4"),
    ),
    settings=(
        setting("in fresh snow/on the snowfield", "#cfe2f4", "#f6faff", "circle -.6 1.0 .9 .35 #ffffff; circle .6 1.05 .9 .4 #eef4fb;", pattern="specks", pattern_color="#ffffff"),
        setting("below the peaks/in the mountains", "#b8d4ee", "#eef6fc", "triangle -.55 .1 .6 .7 #9cb4cc; triangle .5 .2 .7 .6 #a8c0d6; triangle -.55 -.38 .2 .22 #ffffff; triangle .5 -.2 .22 .2 #ffffff; square 0 .9 1.2 .25 #ffffff;"),
        setting("on the frozen lake/on the ice", "#dce8f0", "#b4dcea", "stroke -.4 .5 .4 .1 #ecfaff -20; stroke .4 .75 .4 .1 #ecfaff 15; square 0 -.82 1.2 .06 #5c7c70;", pattern="specks", pattern_color="#f4ffff"),
    ),
    verbs=verbs(
        left="trek | left; slalom | left; plod | left",
        right="trek | right; slalom | right; plod | right",
        up="climb; climb | the slope; lift",
        down="drift; settle; avalanche",
        clockwise="curl | clockwise; carve | a clockwise circle",
        counterclockwise="curl | counter-clockwise; sweep",
        bounce="bob; spring",
        grow="swell; snowball; pile | up",
        shrink="melt; thaw; dwindle",
        appear="open | out of the fog; emerge",
        vanish="get | snowed under; fade; drift | over",
        spin="twirl; skid | around",
        zigzag="shiver; wobble; weave",
        blink="glitter; twinkle",
        stop="freeze; hibernate",
    ),
    props=(
        entity("drift/snowdrift", "heap of snow", "half -.2 .3 .8 .5 main; half .5 .5 .5 .3 light"),
        entity("cabin/chalet", "wooden hut", "square 0 .4 .75 .5 main; triangle 0 -.4 1 .5 dark; square 0 .5 .2 .4 light"),
        entity("needle/icicle", "hanging spike of ice", "triangle 0 0 .3 1 main 180; stroke -.08 -.2 .4 .1 light 80"),
    ),
    reserved=frozenset({"snowmobile", "sled", "seal", "skate", "fir", "conifer", "igloo", "skier", "icicle", "chalet", "snowdrift", "glacier", "cranberry", "thaw", "hibernate", "trek", "plod"}),
)  # fmt: skip

_WEED = "wave -.8 .6 .45 .1 #0e6450 85; wave -.68 .7 .35 .1 #158064 95; wave .82 .62 .42 .1 #0e6450 88;"
