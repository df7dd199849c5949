"""Domains of light on darkness: night traffic, pixel arcade, radar."""

from __future__ import annotations

from benchmarks.data.world.domains.domain_notation import entity, hue, setting, verbs
from benchmarks.data.world.scene_model import Domain, Style

_LAMPS = "square -.62 -.25 .02 .55 #2c3350; circle -.5 -.78 .09 .06 #ffe9a8; square .66 -.25 .02 .55 #2c3350; circle .54 -.78 .09 .06 #ffe9a8;"
_ROAD = "square 0 .78 1.2 .3 #23262f; square -.7 .76 .14 .018 #c9c7a8; square -.2 .76 .14 .018 #c9c7a8; square .3 .76 .14 .018 #c9c7a8; square .8 .76 .14 .018 #c9c7a8;"
_TOWERS = (
    "square -.75 -.1 .2 .55 #161b33; square -.3 .05 .18 .45 #1b2140; square .2 -.2 .2 .7 #141930; square .7 0 .22 .5 #1a1f3c;"
    "square -.78 -.35 .03 .04 #e8c45a; square -.7 -.15 .03 .04 #e8c45a; square .15 -.5 .03 .04 #e8c45a; square .25 -.3 .03 .04 #8fb4ff;"
    "square .7 -.2 .03 .04 #e8c45a; square -.3 -.1 .03 .04 #8fb4ff;"
)

NIGHT_TRAFFIC = Domain(
    "night-traffic",
    "vehicles and signals glowing in a dark city",
    Style(glow=0.75, grain=5, vignette=0.45),
    entities=(
        entity("taxi/cab/minicab", "hired car", "trapezoid 0 -.38 .6 .32 light; square 0 .15 1 .32 main; square 0 -.78 .22 .12 #fff2b0; circle -.55 .52 .26 .26 #0c0d12; circle .55 .52 .26 .26 #0c0d12; circle .92 .1 .1 .1 #fffbe0"),
        entity("lorry/hauler/truck", "goods vehicle", "square -.3 -.1 .68 .58 main; square .7 .12 .3 .36 light; square .75 0 .14 .14 #10131c; circle -.6 .62 .22 .22 #0c0d12; circle -.1 .62 .22 .22 #0c0d12; circle .66 .62 .22 .22 #0c0d12"),
        entity("beetle/bubble car", "small round car", "half 0 -.05 1 .75 main; square 0 .42 1 .2 main; half .1 -.12 .5 .36 #12151f; circle -.55 .62 .26 .26 #0c0d12; circle .55 .62 .26 .26 #0c0d12; circle .88 .2 .1 .12 #fffbe0"),
        entity("scooter/moped", "motorised two-wheeler", "ring -.62 .55 .3 .3 light; ring .62 .55 .3 .3 light; square -.1 .42 .5 .12 main; square .48 -.1 .08 .6 main -14; square -.5 .05 .32 .14 dark; square .38 -.68 .3 .07 light"),
        entity("tram/streetcar", "rail vehicle in a street", "square 0 .05 1 .55 main; square -.6 -.1 .22 .22 #fff2b0; square 0 -.1 .22 .22 #fff2b0; square .6 -.1 .22 .22 #fff2b0; square 0 .68 .8 .1 #0c0d12; stroke -.15 -.72 .3 .1 light 60; stroke .15 -.72 .3 .1 light -60"),
        entity("signal/traffic light", "lights on a pole", "square 0 -.2 .42 .8 #191c28; circle 0 -.7 .24 .24 main; circle 0 -.2 .24 .24 main; circle 0 .3 .24 .24 main; square 0 .8 .09 .22 light"),
    ),
    hues=(
        hue("amber/amber-lit/orange", "#ff981e"),
        hue("hot/brake-red/red", "#ff3434"),
        hue("neon/neon-lit/green", "#50f070"),
        hue("cold/xenon/white", "#d8e6ff"),
        hue("sodium/lamp-yellow/yellow", "#ffe24a"),
        hue("indigo/gas-blue/blue", "#5a78ff"),
    ),
    settings=(
        setting("on a wet road/on the road/on the tarmac", "#0a0f24", "#1c2340", _ROAD + _LAMPS),
        setting("before a skyline/downtown/in front of towers", "#151a38", "#2a2450", _TOWERS + "square 0 .9 1.2 .2 #0d101c;"),
        setting("in a tunnel/inside an underpass", "#1a140c", "#2e2414", "arc 0 .1 .95 .85 #b98b3c; arc 0 .15 .75 .7 #7c5c2a; square 0 .85 1.2 .25 #17130e;"),
    ),
    verbs=verbs(
        left="cruise | left; head | west; reverse; drift",
        right="cruise | right; head | east; pull | out; roll",
        up="rise; climb | the hill; pull | ahead",
        down="drop; sink | down the hill; fall | behind",
        clockwise="turn; take | the roundabout clockwise",
        counterclockwise="loop; take | the roundabout counter-clockwise",
        bounce="hop | over bumps; judder | up and down",
        grow="approach; come | closer; loom",
        shrink="recede; drive | away",
        appear="light | up; arrive; surface",
        vanish="go | dark; switch | off; leave",
        spin="skid | around; pirouette",
        zigzag="weave; swerve; slalom",
        blink="pulse; flash; hazard-flash",
        stop="idle; park; brake",
    ),
    props=(
        entity("hydrant", "fire hydrant", "square 0 .2 .45 .75 main; circle 0 -.6 .45 .35 light; square 0 .1 .8 .18 dark"),
        entity("cone/pylon", "traffic cone", "triangle 0 0 .65 .9 main; square 0 .05 .36 .14 light; square 0 .9 .85 .12 dark"),
        entity("bollard", "short post", "square 0 .15 .3 .85 main; circle 0 -.7 .3 .25 light; square 0 .1 .3 .12 dark"),
    ),
    reserved=frozenset({"taxi", "minicab", "lorry", "hauler", "moped", "scooter", "tram", "hydrant", "bollard", "xenon", "sodium", "swerve", "idle"}),
)  # fmt: skip

PIXEL_ARCADE = Domain(
    "pixel-arcade",
    "sprites of an old video game",
    Style(pixels=34, scanlines=0.16),
    entities=(
        entity("invader/bug/beetle", "hostile creature of a game", "square 0 -.05 .72 .45 main; square -.5 -.65 .12 .22 main; square .5 -.65 .12 .22 main; square -.85 .3 .14 .36 main; square .85 .3 .14 .36 main; square -.35 .7 .2 .16 main; square .35 .7 .2 .16 main; square -.3 -.1 .15 .17 #000000; square .3 -.1 .15 .17 #000000"),
        entity("bolt/zap", "lightning bolt", "lightning 0 0 .95 1 main"),
        entity("runner/sprite", "running figure", "square .05 -.7 .28 .28 light; square 0 -.05 .28 .4 main; square .5 -.1 .28 .11 main -25; square -.48 0 .28 .11 main 25; square .42 .6 .16 .38 dark -35; square -.4 .6 .16 .38 dark 35"),
        entity("pipe/warp pipe", "tube a hero enters", "square 0 .25 .6 .75 main; square 0 -.6 .85 .3 main; square -.35 .3 .1 .65 light; square -.5 -.6 .12 .24 light"),
        entity("mouse/cursor", "mouse pointer", "arrow .1 -.1 1 .8 main -125; square .45 .55 .14 .12 light 45"),
        entity("cell/energy cell", "battery to pick up", "square 0 .1 .55 .85 main; square 0 -.85 .24 .15 light; lightning 0 .1 .34 .55 #000000"),
    ),
    hues=(
        hue("neon/hot/magenta", "#ff3cf0"),
        hue("lava/molten/orange", "#ff5a1e"),
        hue("coin/gilded/yellow", "#ffd820"),
        hue("slime/toxic/green", "#46e63c"),
        hue("cold/frosty/cyan", "#46e6ff"),
        hue("blank/ghostly/white", "#f4f4ff"),
    ),
    settings=(
        setting("in the dungeon/underground", "#12082a", "#12082a", "square 0 .9 1.2 .14 #6a3a1c; square -.7 .9 .02 .14 #2a1408; square -.1 .9 .02 .14 #2a1408; square .5 .9 .02 .14 #2a1408;", pattern="checks", pattern_color="#1d1040"),
        setting("in space/among the stars", "#000006", "#06001c", "", pattern="specks", pattern_color="#8890c8"),
        setting("on the neon grid/on level two", "#20002c", "#4a0a50", "", pattern="grid", pattern_color="#a01e8c"),
    ),
    verbs=verbs(
        left="dash | left; strafe | left; drift | left",
        right="dash | right; strafe | right; scroll",
        up="boost; jetpack | up; swell",
        down="drop; dive; plunge",
        clockwise="loop; loop | clockwise",
        counterclockwise="loop | counter-clockwise; backflip | around",
        bounce="jump; hop; double-jump",
        grow="level | up; power | up",
        shrink="power | down; lose | a level",
        appear="spawn; respawn; fire; flash",
        vanish="despawn; explode; die",
        spin="roll; barrel-roll; tumble",
        zigzag="dodge; jitter",
        blink="glitch; take | damage",
        stop="freeze; pause; lag",
    ),
    props=(
        entity("chest", "treasure chest", "square 0 .3 .9 .5 main; half 0 -.35 .9 .35 dark; square 0 .1 .16 .2 #ffe97a"),
        entity("gem/jewel", "gem to collect", "diamond 0 0 .75 1 main; diamond -.15 -.15 .3 .45 light"),
        entity("potion", "flask", "circle 0 .35 .65 .6 main; square 0 -.5 .22 .4 light; square 0 -.85 .34 .12 dark"),
    ),
    reserved=frozenset({"invader", "sprite", "cursor", "zap", "potion", "chest", "gem", "spawn", "respawn", "despawn", "strafe", "glitch", "lava", "slime"}),
)  # fmt: skip

RADAR = Domain(
    "radar",
    "echoes on a round screen",
    Style(fill=False, line=0.014, line_role="main", glow=0.9, scanlines=0.12, vignette=0.7),
    entities=(
        entity("plane/aircraft/jet", "aircraft", "circle 0 0 .2 1 main; wedge -.55 .1 .45 .3 main; wedge .55 .1 -.45 .3 main; triangle 0 .8 .45 .2 main; stroke 0 .05 .95 .1 main"),
        entity("tank/armoured vehicle", "armoured vehicle", "square 0 .4 1 .35 main; half -.1 -.2 .5 .3 main; square .62 -.22 .4 .08 main; circle -.55 .42 .2 .2 main; circle 0 .42 .2 .2 main; circle .55 .42 .2 .2 main"),
        entity("cell/storm/squall", "thunderstorm", "circle -.4 .2 .5 .45 main; circle .42 .2 .48 .42 main; circle 0 -.25 .5 .48 main; lightning 0 .65 .2 .35 main"),
        entity("drone/quadcopter", "aircraft with four rotors", "ring -.62 -.62 .32 .32 main; ring .62 -.62 .32 .32 main; ring -.62 .62 .32 .32 main; ring .62 .62 .32 .32 main; stroke 0 0 .75 .1 main 45; stroke 0 0 .75 .1 main -45"),
        entity("frigate/vessel", "warship", "trapezoid 0 .45 1 .35 main 180; square 0 -.1 .45 .2 main; square .1 -.55 .12 .25 main"),
        entity("buoy/marker", "floating mark", "triangle 0 -.2 .55 .7 main; circle 0 .65 .7 .26 main; circle 0 -.85 .14 .14 main"),
    ),
    hues=(
        hue("friendly/allied/green", "#3cff6e"),
        hue("hostile/enemy/red", "#ff4638"),
        hue("amber/cautionary/yellow", "#ffe628"),
        hue("bright/cold/white", "#f0fff0"),
        hue("civil/civilian/light blue", "#46c8ff"),
        hue("unknown/unidentified/violet", "#d878ff"),
    ),
    settings=(
        setting("on the scope/on the round screen", "#021408", "#021408", "", pattern="rings", pattern_color="#14622e"),
        setting("over the coast/by the shoreline", "#021018", "#021408", "wave 0 .62 1.2 .18 #0d4a30; square 0 .98 1.2 .3 #0d4a30;", pattern="rings", pattern_color="#124c40"),
        setting("in clutter/among noise", "#06180a", "#0a200c", "", pattern="specks", pattern_color="#2c8a46"),
    ),
    verbs=verbs(
        left="bear | west; veer | left; peel | off",
        right="bear | east; veer | right; sweep",
        up="bear | north; ascend; rise",
        down="bear | south; descend; settle",
        clockwise="orbit | clockwise; turn",
        counterclockwise="orbit | counter-clockwise; loop",
        bounce="hop | between heights; porpoise",
        grow="close | in; near; swell",
        shrink="open | the distance; dive; fade",
        appear="pop | up; surface; enter | the scope",
        vanish="drop; drop | off; leave | the scope",
        spin="yaw | around; tumble",
        zigzag="evade; jink; drift",
        blink="squawk; ping; flicker",
        stop="hover; hold | station",
    ),
    props=(
        entity("pylon/mast", "radio mast", "triangle 0 .1 .5 .9 main; stroke 0 -.3 .5 .1 main; stroke 0 .2 .6 .1 main"),
        entity("islet", "small island", "half 0 .2 1 .5 main; stroke 0 .75 1 .1 main"),
        entity("convoy", "row of ships", "diamond -.65 0 .28 .28 main; diamond 0 0 .28 .28 main; diamond .65 0 .28 .28 main"),
    ),
    sizes={"small": ("small", "minor"), "large": ("large", "heavy")},
    reserved=frozenset({"drone", "quadcopter", "frigate", "vessel", "buoy", "squall", "hostile", "civilian", "unidentified", "veer", "ascend", "evade", "squawk", "islet", "convoy"}),
)  # fmt: skip
