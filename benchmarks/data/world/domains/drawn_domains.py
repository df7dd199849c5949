"""Domains of ink and paper: blueprint, chalkboard, paper theatre."""

from __future__ import annotations

from benchmarks.data.world.domains.domain_notation import entity, hue, setting, verbs
from benchmarks.data.world.scene_model import Domain, Style

BLUEPRINT = Domain(
    "blueprint",
    "technical drawings in thin bright lines",
    Style(fill=False, line=0.013, line_role="main"),
    entities=(
        entity("gasket/seal", "flat ring that closes a joint", "circle 0 0 1 1 main; circle 0 0 .55 .55 main; circle 0 -.77 .12 .12 main; circle 0 .77 .12 .12 main; circle -.77 0 .12 .12 main; circle .77 0 .12 .12 main"),
        entity("bolt/screw", "hexagonal screw", "hexagon 0 -.6 .62 .38 main; square 0 .3 .28 .65 main; stroke 0 .2 .3 .1 main 15; stroke 0 .45 .3 .1 main 15; stroke 0 .7 .3 .1 main 15"),
        entity("crane/hoist", "machine that lifts loads", "square -.45 .15 .12 .85 main; square .1 -.72 .9 .1 main; stroke .8 -.2 .45 .1 main 90; square .8 .38 .18 .16 main; stroke -.05 -.35 .5 .1 main -38"),
        entity("pinion/cogwheel", "toothed wheel", "gear 0 0 1 1 main; circle 0 0 .42 .42 main; circle 0 0 .14 .14 main"),
        entity("spring/coil", "coil that gives way", "zigzag 0 0 1 .5 main 90; stroke 0 -1 .55 .1 main; stroke 0 1 .55 .1 main"),
        entity("tank/vessel", "container for liquids", "square 0 .1 .62 .6 main; half 0 -.66 .62 .24 main; stroke 0 .2 .6 .1 main; square -.42 .88 .08 .18 main; square .42 .88 .08 .18 main"),
    ),
    hues=(
        hue("cyan ink/cold/cyan", "#50e6ff"),
        hue("plain/pearl/white", "#ffffff"),
        hue("hot/redlined/red", "#ff5048"),
        hue("highlighted/fluorescent/yellow", "#ffee46"),
        hue("mint/approved/green", "#62f07a"),
        hue("pencilled/lilac/violet", "#d8a8ff"),
    ),
    settings=(
        setting("on the drawing sheet/on sheet one", "#0e3c96", "#0e3c96", "", pattern="grid", pattern_color="#2c5cb8"),
        setting("above the title block/on the framed sheet", "#103a82", "#103a82", "square 0 -.93 1.2 .012 #8fb4ee; square 0 .93 1.2 .012 #8fb4ee; square -.93 0 .012 1.2 #8fb4ee; square .93 0 .012 1.2 #8fb4ee; square .62 .8 .3 .012 #8fb4ee; square .33 .87 .012 .08 #8fb4ee;"),
        setting("on dotted film/on the tracing film", "#1a4c9c", "#1a4c9c", "", pattern="dots", pattern_color="#4a7cd0"),
    ),
    verbs=verbs(
        left="translate | left; feed | backwards; shift | left",
        right="translate | right; feed | forwards; shift | right",
        up="lift; extend | upwards; hoist | itself",
        down="retract; lower | itself; rest | lower",
        clockwise="tick; orbit | clockwise",
        counterclockwise="back | off; orbit | counter-clockwise",
        bounce="recoil; reciprocate; spring",
        grow="scale | up; dilate",
        shrink="scale | down; contract",
        appear="get | drafted; plot",
        vanish="get | erased; strike | out",
        spin="turn; rotate | on its axis; revolve",
        zigzag="oscillate; vibrate",
        blink="toggle; cycle",
        stop="lock; jam",
    ),
    props=(
        entity("rivet", "flat-headed pin", "half 0 -.35 .8 .45 main; square 0 .45 .32 .45 main"),
        entity("bracket", "angle that holds", "square -.55 0 .2 .9 main; square .2 .7 .75 .2 main; circle .5 .7 .1 .1 main"),
        entity("washer", "thin disc with a hole", "circle 0 0 .85 .85 main; circle 0 0 .4 .4 main"),
    ),
    sizes={"small": ("small", "undersized"), "large": ("large", "oversized")},
    reserved=frozenset({"gasket", "seal", "bolt", "screw", "hoist", "pinion", "cogwheel", "rivet", "washer", "bracket", "oscillate", "recoil", "translate", "toggle", "redlined"}),
)  # fmt: skip

CHALKBOARD = Domain(
    "chalkboard",
    "lessons drawn by hand on a board",
    Style(fill=False, line=0.018, line_role="main", wobble=0.014, grain=9),
    entities=(
        entity("ray/vector", "directed line", "arrow .62 0 .38 .5 main; stroke -.35 0 .62 .1 main; circle -.95 0 .1 .1 main"),
        entity("plane/parallelogram", "flat surface of geometry", "square -.02 0 .62 .5 main; wedge -.8 0 .18 .5 main; wedge .78 0 .18 .5 main 180"),
        entity("kite/rhomboid", "four-sided figure", "diamond 0 0 .6 1 main; stroke 0 0 1 .1 main 90; stroke 0 0 .6 .1 main"),
        entity("wave/sinusoid", "curve of the sine", "wave 0 -.1 1 .5 main; stroke 0 .75 1 .1 main"),
        entity("protractor", "half-round instrument for angles", "half 0 -.05 1 .7 main; half 0 .2 .4 .3 main; stroke .42 -.1 .5 .1 main -45; stroke -.42 -.1 .5 .1 main 45"),
        entity("bat/club", "stick to hit a ball with", "trapezoid -.1 -.3 .3 .7 main 180; square -.1 .6 .11 .36 main; circle .7 .45 .24 .24 main"),
    ),
    hues=(
        hue("chalk/whitish/white", "#f4f4ee"),
        hue("lemon/lemony/yellow", "#fff070"),
        hue("hot/raspberry/pink", "#ff78b4"),
        hue("mint/spearmint/green", "#74ec94"),
        hue("sky/azure/light blue", "#86c8ff"),
        hue("coral/salmon/orange", "#ff8c64"),
    ),
    settings=(
        setting("on the board/on the blackboard", "#234034", "#1c362c", "square 0 .96 1.2 .05 #6a4a2a;", pattern="paper", pattern_color="#3c5c50"),
        setting("on squared slate/on the slate", "#2c3034", "#25282c", "", pattern="grid", pattern_color="#42484e"),
        setting("under a half-wiped sum/in the maths lesson", "#284438", "#213a30", "zigzag -.6 -.82 .3 .05 #62786c; stroke .1 -.82 .25 .1 #62786c; ring .6 -.82 .1 .08 #62786c;", pattern="paper", pattern_color="#466456"),
    ),
    verbs=verbs(
        left="sweep; slip | left; recur | to the left",
        right="extend | right; slip | right; progress",
        up="ascend; lift; increase",
        down="descend; decrease; dip",
        clockwise="trace | a circle clockwise; curl | clockwise",
        counterclockwise="trace | a circle counter-clockwise; turn",
        bounce="spring; skip | up and down",
        grow="dilate; double | its size; rise",
        shrink="halve | its size; dwindle; sink",
        appear="get | sketched; emerge",
        vanish="get | wiped off; cancel | out",
        spin="pivot; revolve",
        zigzag="alternate; scribble | from side to side",
        blink="tick; flicker",
        stop="stay | constant; hold",
    ),
    props=(
        entity("eraser/duster", "wiper for the board", "square 0 0 .9 .45 main; stroke 0 .1 .85 .1 main"),
        entity("abacus", "frame with beads", "square 0 0 .85 .8 main; circle -.4 -.35 .16 .16 main; circle 0 -.35 .16 .16 main; circle .1 .35 .16 .16 main; circle .5 .35 .16 .16 main"),
        entity("set square", "right-angled ruler", "wedge 0 0 .8 .8 main; wedge .25 .25 .3 .3 main"),
    ),
    reserved=frozenset({"vector", "parallelogram", "rhomboid", "sinusoid", "protractor", "kite", "duster", "abacus", "pivot", "dwindle", "alternate", "azure", "spearmint"}),
)  # fmt: skip

_CURTAINS = "square -.95 0 .14 1.2 #8c2430; square -.8 0 .05 1.2 #a8323c; square .95 0 .14 1.2 #8c2430; square .8 0 .05 1.2 #a8323c; square 0 -.97 1.2 .1 #a8323c;"

PAPER_THEATRE = Domain(
    "paper-theatre",
    "cut paper on a small stage",
    Style(shadow=0.028, grain=5, line=0.006, line_role="ink"),
    entities=(
        entity("crane/origami bird", "folded paper bird", "triangle 0 -.25 .4 .7 main; wedge -.6 .15 .42 .35 light; wedge .55 0 .42 .5 dark 180; triangle -.85 -.35 .1 .4 main -25; triangle .1 .5 .55 .35 main 180"),
        entity("bat", "night animal with wings", "wedge -.6 0 .42 .45 main; wedge .6 0 -.42 .45 main; circle 0 .05 .28 .5 dark; triangle -.16 -.52 .12 .2 dark; triangle .16 -.52 .12 .2 dark"),
        entity("star/tinsel star", "cut-out star", "star 0 0 1 1 main; star 0 .02 .55 .55 light"),
        entity("coach/carriage", "horse-drawn carriage", "circle 0 -.15 .72 .6 main; square 0 -.2 .3 .3 light; ring -.55 .62 .32 .32 dark; ring .55 .62 .32 .32 dark; square 0 -.82 .14 .14 dark"),
        entity("fan/pleated fan", "hand fan", "half 0 0 1 .75 main; stroke -.4 .1 .68 .1 dark 50; stroke .4 .1 .68 .1 dark -50; stroke 0 0 .72 .1 dark 90; circle 0 .75 .14 .14 light"),
        entity("clown/jester", "puppet of a fool", "trapezoid 0 .5 .55 .48 main; circle 0 -.2 .38 .38 #f4d8b8; triangle 0 -.75 .38 .32 dark; circle 0 -.12 .1 .1 #e02828; circle -.16 -.3 .06 .06 #221818; circle .16 -.3 .06 .06 #221818"),
    ),
    hues=(
        hue("ruby/garnet/red", "#c41e3c"),
        hue("amber/varnished/brown", "#8a4a14"),
        hue("ink/inked/black", "#2c2834"),
        hue("gilt/brocade/golden", "#e0a818"),
        hue("jade/verdigris/green", "#1e8c6e"),
        hue("plum/damson/purple", "#6e2c80"),
    ),
    settings=(
        setting("on stage/between the curtains", "#f4e4c2", "#e8cf9e", _CURTAINS + "square 0 .9 1.2 .16 #a8743c;", pattern="paper", pattern_color="#d8bc88"),
        setting("before paper hills/in the second act", "#f8ecd0", "#f2dcae", "circle -.5 .95 .7 .4 #c8c088; circle .5 1.0 .8 .45 #b0b078;", pattern="paper", pattern_color="#e0cca0"),
        setting("by the paper sea/in the storm scene", "#e8e2d2", "#dcd4c0", "wave 0 .7 1.2 .1 #8cb0c0; wave .2 .85 1.2 .1 #7aa0b4; square 0 1 1.2 .12 #7aa0b4;", pattern="paper", pattern_color="#ccc2aa"),
    ),
    verbs=verbs(
        left="exit | left; glide | left; waltz | left",
        right="sweep; glide | right; waltz | right",
        up="rise; get | hoisted up; ascend",
        down="get | lowered; bow; descend",
        clockwise="waltz | clockwise; wheel | clockwise",
        counterclockwise="waltz | counter-clockwise; roll",
        bounce="dance | up and down; curtsy",
        grow="unfold; step | forward",
        shrink="fold | up; step | back",
        appear="open; enter; get | revealed",
        vanish="close; peel | off; exit",
        spin="twirl; pirouette",
        zigzag="flutter; sway; swing",
        blink="flap; play | peekaboo",
        stop="pose; freeze",
    ),
    props=(
        entity("lantern", "paper lantern", "circle 0 .1 .6 .7 main; square 0 -.7 .3 .12 dark; square 0 .85 .3 .12 dark"),
        entity("throne", "king's chair", "square 0 -.3 .5 .7 main; square 0 .5 .75 .25 dark; square -.6 .85 .12 .15 dark; square .6 .85 .12 .15 dark"),
        entity("turret", "paper tower", "square 0 .3 .5 .7 main; square -.4 -.5 .14 .2 main; square 0 -.5 .14 .2 main; square .4 -.5 .14 .2 main; square 0 .3 .14 .25 dark"),
    ),
    reserved=frozenset({"origami", "jester", "coach", "carriage", "tinsel", "lantern", "throne", "turret", "twirl", "unfold", "waltz", "curtsy", "ruby", "gilt", "jade", "plum"}),
)  # fmt: skip
