"""The drawings of the demo's videos in the language of :mod:`media.scenes.painting`, with words for captions."""

STREET = """
subject taxi: cab / drives
    box gold 134,112 158,123 round=3
    blob body 100,143 118,123 140,120 164,122 188,144 144,150
    polygon aliceblue>steelblue 110,142 122,126 162,125 179,142
    line body 143,122 143,142 width=4
    blob body 81,154 88,142 144,140 194,143 207,152 206,164 144,167 82,165
    box white 92,149 196,154
    box black 92,149 100,154 repeat=7,16,0
    ellipse lightyellow 202,153 4,4
    wheel silver 109,164 179,164 size=1.25
subject double-decker bus: bus / drives
    box body 70,81 218,166 round=9
    box body+65 70,122 218,126
    box aliceblue>steelblue 78,90 97,112 round=3 repeat=6,23,0
    box aliceblue>steelblue 78,131 97,148 round=3 repeat=4,23,0
    box aliceblue>steelblue 172,130 190,164 round=3
    box aliceblue>steelblue 198,129 218,149 round=3
    wheel silver 100,163 158,163 203,163 size=1.2
subject tram: streetcar / drives
    line dimgray 128,104 146,90 128,83 162,83 width=1.6
    box gray 118,99 170,106 round=3
    blob body 61,162 63,120 74,105 144,103 214,105 225,120 227,162 144,166
    box whitesmoke 64,142 224,148
    box aliceblue>steelblue 72,115 96,136 round=4 repeat=5,30,0
    box lightblue>steelblue 100,114 120,162 round=2 repeat=2,60,0
    wheel gray 86,168 108,168 180,168 202,168 size=0.7
subject scooter: moped / rides
    wheel silver 116,162 173,162 size=1.2
    blob body 102,152 107,136 135,133 141,148 159,156 159,163 129,165 107,162
    blob body 157,162 155,138 161,122 169,124 171,144 167,162
    ellipse lightyellow 173,126 4,5
    curve #34426e 125,128 143,132 149,146 153,158 width=9
    blob body 117,130 119,108 129,102 137,108 135,130
    curve body-20 130,110 143,122 161,120 width=6
    ellipse #ecbc96 132,95 9,10
    blob body 121,98 122,86 132,81 142,87 141,93 129,94
subject tractor: farm tractor / drives
    line dimgray 179,126 179,104 width=4
    box body 105,86 147,92 round=3
    polygon aliceblue>steelblue 109,92 143,92 147,130 105,130
    line body-15 126,91 126,130 width=3
    blob body 141,154 143,126 169,123 193,126 198,136 197,154
    box body 105,130 151,152 round=5
    tyre gold 117,144 size=2.9
    tyre gold 183,157 size=1.6
subject dump truck: truck full of sand / drives
    blob #e2be78>#a87a42 75,114 91,98 117,90 143,97 165,114 117,122
    polygon body 69,108 171,112 165,150 81,150
    line body-30 87,113 91,148 width=3 repeat=4,21,0
    blob body 173,158 173,114 179,106 199,106 209,128 217,134 217,158
    polygon aliceblue>steelblue 180,129 180,112 196,112 204,129
    box #34343c 75,150 217,160 round=3
    wheel silver 95,160 123,160 195,160 size=1.4
symbol wheel
    ellipse #22242a 0,0 10,10
    ellipse body 0,0 6.2,6.2
    line body-60 0,0 5.5,0 width=1 turn=5,360 spin
symbol tyre
    line #22242a 0,0 10,0 width=1.5 turn=14,360 spin
    wheel body 0,0 size=0.96
companion light: and stops at a red light / and waits at a traffic light / and halts at the traffic light
    line #383a42 226,156 226,88 width=5
    box #42444c>#222428 208,30 244,102 round=7
    glow red 226,45 24,24
    ellipse red 226,45 11,11
    ellipse #3c4034 226,67 9,9 repeat=2,0,21
companion dog: and passes a dog / and goes by a brown dog / while a dog watches
    curve #7e502c 48,186 39,176 40,162 width=5 sway=3,0
    blob #c4884c 46,194 50,170 66,156 82,158 86,180 84,195
    ellipse #c4884c 56,188 13,9
    ellipse #c4884c 84,144 17,16
    blob #dbb089 90,142 102,142 106,148 100,155 90,154
    ellipse black 104,146 3.6,3
    ellipse black 90,139 2.2,2.6
    blob #7e502c 72,132 78,130 78,148 72,158 66,150
    line crimson 74,160 90,161 width=3
companion balloon: under a hot-air balloon / below a hot-air balloon / while a hot-air balloon floats above
    balloon darkorange 204,-6 sway=12,2
symbol balloon
    blob body 0,2 26,14 35,40 22,66 8,80 -8,80 -22,66 -35,40 -26,14
    blob linen -9,3 -13,38 -5,79 -13,79 -31,38
    blob linen 9,3 31,38 13,79 5,79 13,38
    blob #7846b4 0,3 9,38 4,79 -4,79 -9,38
    polygon #5a402c -8,80 -4,94 -7,80 7,80 4,94 8,80
    box #b07a46 -7,93 7,104 round=2
companion cart: and stops at an ice cream cart / and waits at an ice cream cart / and parks at the ice cream stand
    line #786e68 226,116 226,74 width=2.4
    blob white 192,80 202,62 226,53 250,62 260,80 226,76
    polygon turquoise 226,54 196,78 208,78 226,54 220,79 232,79 226,54 244,78 256,78
    ellipse lightpink|sienna|cornsilk 206,110 6.5,5.5 repeat=4,11,0
    box cornsilk 196,112 256,142 round=4
    polygon peru 219,126 233,126 226,141
    ellipse lightpink 226,125 8,6
    ellipse #3c383c 208,145 9,9 repeat=2,36,0
place night: at night / in the dark city / under the moon at night
    box #0a0c2c>#342860 0,0 288,208
    ellipse lavender 0,0 0.8,0.8 scatter=50,0,0,288,90
    sun #f4f0d6 0,30 scatter=1,40,0,250,0
    tower #1e2040|#2e2a58|#26264c 0,150 scatter=9,-16,0,290,0
    road #303046 0,152
    lamp #ffd682 40,150 150,150 258,150
place snow: through the snow / on a snowy winter road / while snow falls
    box #b0cae4>#ecf2fa 0,0 288,208
    blob white>#e2eaf6 -60,170 0,122 90,114 180,124 300,110 340,170
    fir seagreen 0,146 scatter=9,0,-6,288,2
    box white>#e2eaf6 0,144 288,208
    box #bac6d8>#d0dae8 0,158 288,198
    drops white 90,0.5 2,2 alpha=0.9
place rain: through the rain / on a wet and rainy street / while it rains
    box #5c6472>#969ca6 0,0 288,208
    ellipse #7e8490>#565c6a 0,10 36,17 repeat=9,36,0
    house #a08c78|#86808c|#a69c88|#809088|#968080 -30,148 repeat=6,58,0
    road #5c626e 0,152
    ellipse #bed0de>#8c9aac 0,0 26,4 scatter=5,10,164,278,204
    drops #dce6f5 80,3 0.7,7 alpha=0.5
place sunset: at sunset by the sea / along the beach at sunset / at sunset under palm trees
    box #6e3274>#ff9646 0,0 288,112
    sun #ffe68c 0,94 size=2 scatter=1,80,0,210,0
    ellipse #ffaa82 0,0 35,4 alpha=0.6 scatter=5,0,14,288,60
    box #e27050>#46326c 0,104 288,146
    ellipse #ffd68c 0,0 14,1 alpha=0.7 scatter=14,80,108,210,142
    box #e8b87e>#ce9664 0,140 288,154
    palm #2e3c36 18,150 mirror
    road #74505c 0,152
place country: through the countryside / on a country road / past a farm on the hills
    box #52aaf0>#ceecfc 0,0 288,208
    cloud white 0,0 scatter=4,10,14,278,50
    blob #96d062>#5ca84c -60,170 0,100 80,84 170,112 260,80 340,110 340,170
    blob #7ec24c>#549e3e -60,180 30,122 130,110 230,128 340,116 340,180
    house #bc463a 0,128 size=0.7 scatter=1,10,0,70,0
    tree #46963e 0,144 scatter=5,110,0,288,0
    road #b09674 0,152
place desert: through the desert / past cacti in the desert / in the hot desert
    box #5cbad6>#fce8be 0,0 288,208
    mesa #dc7a4c 0,134 scatter=2,20,0,260,0
    blob #f6d088>#e2ac62 -60,180 0,128 110,116 200,130 320,120 340,180
    cactus #3a7c48 0,146 scatter=3,10,0,280,0
    road #cea068 0,152
symbol road
    box body+25 0,-8 288,0
    box body-15>body 0,0 288,56
    polygon body+70 8,42 38,42 35,46 5,46 repeat=6,52,0
symbol sun
    glow body 0,0 46,46
    ellipse body 0,0 14,14
symbol tower
    box body 0,-96 36,0
    windows gold 5,-90 repeat=8,0,11
symbol windows
    box body|body|#3c3664 0,0 5,6 repeat=3,10,0
symbol lamp
    line #32364a 0,0 0,-74 10,-80 width=2.4
    glow body 13,-76 34,34
symbol fir
    box #5c4434 -3,-10 3,0
    polygon body -21,-9 -8,-24 -15,-24 -5,-40 -10,-40 0,-62 10,-40 5,-40 15,-24 8,-24 21,-9
    blob white 0,-64 6,-48 0,-51 -6,-48 repeat=3,0,17
symbol house
    box body 0,-76 56,0
    polygon #925c50 -3,-76 28,-98 59,-76
    box aliceblue>steelblue 8,-66 22,-50 repeat=2,26,0
    box #5e463c 22,-20 34,0
symbol palm
    curve #422628 0,0 4,-50 14,-92 width=5
    leaves body 14,-92
symbol leaves
    blob body 0,0 -6,-20 4,-40 3,-18 turn=6,250
symbol cloud
    ellipse white -13,2 12,7 repeat=2,26,0
    ellipse white 0,-3 14,10
symbol tree
    box #6e4c32 -2.5,-26 2.5,0
    ellipse body -11,-38 15,14 repeat=2,22,0
    ellipse body 0,-47 15,14
symbol mesa
    polygon body -46,0 -34,-70 34,-68 47,0
    box body-15 -36,-60 36,-57 repeat=3,0,16
symbol cactus
    line body 0,0 0,-55 width=11
    curve body 0,-22 -16,-25 -19,-44 width=8
    curve body 0,-16 16,-19 19,-36 width=8
"""

SEA = """
subject whale: big whale / swims
    blob body 100,96 80,92 62,64 78,62 88,72 96,60 108,62 102,84 sway=0,4
    blob body 88,94 122,68 162,58 204,64 222,86 220,106 198,124 152,126 110,112
    blob body+72 132,118 170,108 220,100 216,112 196,124 154,126
    blob body-15 156,112 168,116 162,136 142,142 146,126 sway=0,5
    eye white 196,90 size=0.45
    curve body-50 186,104 204,102 220,96 width=1.6
subject turtle: sea turtle / swims
    blob body+15 103,102 87,104 75,118 93,118 113,110 sway=0,4
    blob body+35 153,104 161,122 145,144 137,128 139,106 sway=0,6
    blob body+35 169,92 189,74 207,74 215,86 207,96 187,102 173,104
    eye white 201,83 size=0.4
    blob body 89,104 99,74 133,56 167,72 181,102 135,114
    hexagon body-28 135,74 111,84 159,84 123,98 147,98
    curve body+55 89,104 135,115 181,102 width=4
subject octopus: octopus with many arms / swims
    curve body-12 177,94 190,116 205,134 214,132 221,124 width=8 sway=4,2 mirror
    curve body-12 164,94 171,116 181,134 186,136 193,128 width=8 sway=-4,2 mirror
    curve body-12 150,94 153,116 156,134 158,140 165,132 width=8 sway=4,0 mirror
    blob body 102,98 98,68 114,44 144,37 174,44 190,68 186,98 144,108
    eye white 130,80 160,80 size=0.9
    curve body-60 134,96 145,100 156,96 width=2
subject jellyfish: jellyfish with long tentacles / floats
    glow body+40 144,74 48,48
    curve body+15 114,76 118,100 110,124 116,146 width=2.4 repeat=7,10,0 sway=4,0
    curve body+50 130,76 124,90 136,102 126,116 133,128 width=5.5 alpha=0.9 repeat=3,14,0
    blob body 102,78 108,52 126,36 162,36 180,52 186,78 168,73 156,81 144,75 132,81 120,73
    curve body+55 144,42 130,54 122,68 width=2 mirror
subject crab: crab with claws / walks
    line body-18 168,158 186,154 188,178 width=5 repeat=3,8,4 sway=0,2 mirror
    line body-10 176,150 196,142 194,126 width=8 sway=0,4 mirror
    blob body 181,126 177,110 188,97 193,114 200,97 211,110 207,126 sway=0,4 mirror
    line body-10 156,142 158,128 width=4 mirror
    blob body 104,158 112,142 144,136 176,142 184,158 172,174 144,179 116,174
    ellipse body+55 124,150 2.6,2 repeat=3,20,0
    eye white 130,125 158,125 size=0.7
    curve body-60 130,164 144,170 158,164 width=2.4
subject submarine: submarine with round windows / dives
    line gray 151,82 151,64 161,64 width=4
    box body 127,80 171,104 round=7
    polygon body-15 89,108 71,90 71,144 89,128
    ellipse lightgray 70,117 3,11 sway=0,6
    blob body 79,118 95,100 147,94 199,100 219,118 199,138 147,143 95,136
    ellipse gray 121,116 12,12 repeat=3,30,0
    ellipse #dcf6ff>#468cb4 121,116 9,9 repeat=3,30,0
    ellipse lightyellow 213,118 5,6
symbol eye
    ellipse white 0,0 10,10
    ellipse black 2.5,1 6,6
    ellipse white 4,-2 2,2
symbol hexagon
    polygon body 10,0 5,7.4 -5,7.4 -10,0 -5,-7.4 5,-7.4
companion fish: with a school of orange fish / next to many small orange fish / while orange fish follow
    fish darkorange 56,22 88,14 120,26 62,48 88,38 122,52 94,64 sway=12,2
companion chest: next to a treasure chest / near a chest full of gold / by an open treasure chest
    glow #ffe26e 82,154 36,36
    polygon #64401e 48,156 44,130 120,130 116,156
    line gold 44,130 120,130 width=4
    ellipse gold 52,155 6,5 repeat=9,7.5,0
    box #8e582e 46,158 118,194 round=3
    box gold 53,158 59,194 repeat=2,52,0
    box gold 75,158 89,174 round=2
    polygon ivory 100,134 101,139 106,140 101,141 100,146 99,141 94,140 99,139 sway=8,0
companion diver: with a diver / next to a scuba diver / while a diver waves
    box gold 50,60 66,104 round=7
    line #222430 76,108 74,130 72,148 width=9 sway=4,0
    line #222430 88,108 92,130 94,148 width=9 sway=-4,0
    blob gold 66,146 78,146 78,168 60,168 sway=4,0
    blob gold 88,146 100,146 106,168 88,168 sway=-4,0
    blob #3c3e49 66,108 64,74 72,64 90,64 98,76 96,108
    curve #222430 92,74 108,82 112,64 width=8 sway=0,3
    ellipse #ecbc96 113,60 5,5 sway=0,3
    ellipse #222430 82,50 15,16
    ellipse #ecbc96 85,51 11,12
    box #d2f0ff>#5aaad2 74,43 99,55 round=5
companion anchor: next to an anchor / near a heavy anchor / by a big iron anchor
    line #666c7a 76,112 76,188 width=8
    curve #666c7a 76,112 68,105 76,97 84,105 76,112 width=4
    line #666c7a 58,126 94,126 width=6
    curve #666c7a 44,156 50,178 76,190 102,178 108,156 width=8
    polygon #666c7a 33,164 44,144 55,164 repeat=2,64,0
symbol fish
    polygon body -6,0 -17,-7 -17,7 sway=0,3
    blob body -9,0 -2,-8 8,-6 13,0 8,6 -2,8
    box white -1,-7 2,7 round=1
    ellipse black 8,-2 1.6,1.6
place reef: over a coral reef / among colorful corals / above the coral reef
    water #46c8e8>#1060aa 0,0
    blob #6e6096>#3c3260 200,260 222,150 262,108 330,120 330,260 mirror
    seabed #e8d4a0 0,182
    coral tomato|orange|mediumorchid|hotpink|gold 0,0 scatter=9,0,188,288,206
place wreck: past a sunken ship / near an old shipwreck / along a sunken wooden ship
    water #3c92a0>#123a54 0,0
    line #4a342a 150,150 136,14 width=5
    line #4a342a 104,48 176,40 width=3.4
    polygon #c4baa0>#8c8474 108,50 172,43 176,96 152,84 128,104 118,88
    blob #74543c>#402e28 16,110 60,132 160,138 240,122 286,84 276,150 240,204 70,206 36,170
    curve #4a342a 42,130 140,146 254,126 width=1.6 repeat=4,0,14
    ellipse black 84,158 8,8 repeat=4,40,0
    seabed #a8a482 0,192
place kelp: through a forest of seaweed / between tall seaweed / in a seaweed forest
    water #96d696>#105454 0,0
    seaweed #327854|#548c34|#78a032 0,214 scatter=12,-10,0,298,0
    seabed #708054 0,196
place deep: in the dark deep sea / in the dark of the deep ocean / among glowing lights in the deep sea
    box #0a163e>#020410 0,0 288,208
    glow #28dcc8 0,0 26,26 alpha=0.35 scatter=7,0,0,288,150
    blob #1e223c>#080814 -40,300 -20,160 40,176 100,190 180,178 250,164 340,180 340,300
    stalk aquamarine 0,200 scatter=5,10,0,278,0
    drops aquamarine 40,-0.1 1.6,1.6 alpha=0.8
place ice: under the ice / below icebergs in cold water / below floating ice
    water #cef0fa>#3c8cbe 0,0
    berg #b0dcf0 0,0 scatter=5,0,0,288,0
    polygon #ecf8ff>#96c8e2 -10,214 20,176 60,190 110,182 150,196 210,178 250,192 300,172 300,214
place ruins: past the columns of a sunken temple / between the columns of a ruined temple / near temple ruins
    water #3878c4>#162c6e 0,0
    column #d6ceb8 26,190 92,190 180,190 246,190
    polygon #d6ceb8 2,41 2,30 59,8 116,30 116,41 repeat=2,154,0
    seabed #b2b2a0 0,190
symbol water
    box body 0,0 288,208
    polygon white 0,0 18,0 -22,208 -80,208 alpha=0.12 scatter=5,0,0,330,0
    drops lightcyan 16,-0.5 3,3 alpha=0.35
symbol seabed
    blob body+20>body-50 -50,100 -30,0 30,-4 90,5 150,-3 210,4 270,-4 330,2 360,100
    ellipse body-25 0,0 1.6,0.9 scatter=40,0,8,288,26
symbol coral
    curve body 0,0 1,-25 -2,-48 width=5 turn=5,130
    ellipse body+40 -2,-48 5,5 turn=5,130
symbol seaweed
    curve body-20 0,0 6,-60 -6,-120 6,-180 0,-240 width=3.5
    blob body 2,-10 10,-21 17,-25 11,-13 repeat=8,0,-30
    blob body 0,-10 -8,-21 -15,-25 -9,-13 repeat=8,0,-30
symbol stalk
    curve #285a78 0,0 4,-18 -3,-37 width=3
    glow body -3,-37 15,15
    ellipse body+40 -3,-37 3,3
symbol berg
    polygon white>body -38,-6 38,-6 24,30 4,60 -14,42 -31,27
    polygon body 4,-6 38,-6 24,30 4,60 alpha=0.6
symbol column
    box body -13,-144 13,0
    line body-30 -6,-140 -6,-4 width=1.2 repeat=3,6,0
    box body -18,-150 18,-140 round=1 repeat=2,0,144
"""

KITCHEN_TABLE = """
subject teapot: pot of tea / steams
    steam white 201,98
    curve body-15 100,120 76,116 72,138 84,156 106,158 width=9
    blob body 174,152 192,140 198,116 214,110 210,120 204,146 180,166
    blob body 94,142 104,114 144,102 180,114 192,142 178,170 144,177 110,170
    blob body 114,110 124,98 144,94 164,98 174,110 144,114
    ellipse body 144,90 7,7
    curve body+60 102,138 144,146 184,138 width=3
subject coffee mug: cup of coffee / waits
    steam white 124,94
    curve body-15 169,116 193,114 199,134 189,154 169,154 width=11
    blob body 93,100 93,116 95,140 98,162 111,173 133,176 155,173 168,162 171,140 173,116 173,100
    ellipse body+30 133,100 40,11
    ellipse #603a22 133,101 35,8.5
subject birthday cake: cake with candles / stands
    ellipse lightgray 144,172 66,8
    tier body 144,170
    tier body 144,132 size=0.7
    box white>#96c8f0 118,78 122,100 round=1 repeat=4,16,0
    flame orange 120,78 repeat=4,16,0
subject toaster: toaster with two slices / pops up toast
    box #ecbe78>#c48c4e 105,96 139,138 round=8 sway=0,8 repeat=2,44,0
    box #fadca4 109,100 135,138 round=5 sway=0,8 repeat=2,44,0
    box body 81,110 205,172 round=17
    box #322e32 99,112 143,118 round=3 repeat=2,44,0
    ellipse silver 181,150 9,9
    box #323036 92,170 110,177 round=2 repeat=2,84,0
subject vase of flowers: flower vase / stands
    curve #468c3c 144,130 129,105 114,74 width=2.6 mirror
    line #468c3c 144,130 144,58 width=2.6
    flower darkorange 114,74 174,74 160,90 sway=2,0
    flower mediumorchid 144,58 128,90 sway=2,0
    blob body 128,116 126,126 108,144 116,170 144,178 172,170 180,144 162,126 160,116 144,119
    ellipse body-40 144,116 17,4.5
subject cooking pot: pot with a lid / boils
    steam white 135,90
    box #3c3a40 70,122 90,134 round=6 repeat=2,128,0
    box body 84,112 204,174 round=16
    box lightgray 84,112 204,120 round=3
    blob body+10 82,112 96,100 144,92 192,100 206,112 144,114 sway=0,1.5
    ellipse #3c3a40 144,89 10,6.5 sway=0,1.5
symbol steam
    curve body 0,0 4,-8 -3,-16 2,-26 width=3.6 alpha=0.6 repeat=3,9,0 sway=2,-6
symbol tier
    box body -56,-42 56,0 round=6
    ellipse white>white -48,-32 9,9 repeat=7,16,0
    ellipse white>white -46,-7 3.4,3.4 repeat=6,18.4,0
symbol flame
    glow #ffd26e 0,-5 23,23
    blob body 0,0 -4,-4 0,-13 4,-4 sway=1.5,0
    blob #fff096 0,0 -2.5,-2.4 0,-8 2.5,-2.4 sway=1,0
symbol flower
    ellipse body 8.5,0 6,6 turn=7,360
    ellipse #6e4028 0,0 5,5
companion cat: next to a sleeping cat / near a gray cat that sleeps / while a cat sleeps
    glow black 82,188 56,7
    blob #848490 48,186 44,162 72,144 110,146 130,168 124,188 86,192
    curve #5c5c6a 88,146 93,158 91,168 width=4 repeat=3,12,0
    curve #5c5c6a 126,180 120,192 92,193 68,190 width=9 sway=0,1
    polygon #5c5c6a 34,154 34,134 50,146 58,146 74,134 72,154
    ellipse #90909a 54,164 24,20
    curve black 40,162 45,166 50,162 width=1.8 repeat=2,18,0
    polygon #f08c96 51,170 57,170 54,174
    line white 62,174 81,171 width=0.9 repeat=2,0,4
    line white 27,171 46,174 width=0.9 repeat=2,0,4
companion candle: next to a burning candle / by the light of a candle / near a lit candle
    glow black 76,190 36,6
    ellipse #c4963c 76,186 34,7
    box #fffcec>#d6c4a0 63,126 89,184 round=5
    blob #fffae6 62,128 68,130 69,144 73,130 82,131 84,154 89,130 90,124 76,121
    flame orange 76,122 size=3
companion oranges: next to three oranges / near a pile of oranges / beside three ripe oranges
    glow black 82,190 54,8
    ellipse #f88a16 55,168 25,24 repeat=2,54,0
    ellipse #f88a16 82,142 25,24
    blob #46963c 88,127 98,118 110,120 102,128
companion bread: next to a loaf of bread / near sliced bread / beside fresh bread
    glow black 82,192 60,7
    box #d8b282 24,182 140,192 round=4
    blob #b87436 34,182 30,158 44,142 78,136 106,144 112,166 108,183 72,184
    curve #f6deb0 44,158 50,148 60,142 width=4 repeat=3,18,0
    blob #b87436 100,182 96,160 104,146 116,148 121,164 118,183 repeat=2,17,0
    blob #f6deb0 103,180 100,162 106,150 114,152 118,164 115,180 repeat=2,17,0
place table: on a wooden table / on a table of dark wood / on a brown wooden table
    box #b0967a>#92745a 0,0 288,150
    box #a46c42>#7c4a28 0,124 288,208
    ellipse #50301a 0,0 36,0.6 alpha=0.5 scatter=50,0,126,288,208
    line #5a3820 0,148 288,148 width=1 repeat=3,0,22
    box #603e26 176,14 244,72 round=2
    box #a0ceec>#e4eef6 182,20 238,66
    blob #5a9060 182,65 196,44 212,54 226,40 237,65
    polygon #504e54 50,46 62,26 69,26 69,0 71,0 71,26 78,26 90,46
    glow #ffecb4 70,56 52,52
place cloth: on a checkered tablecloth / on a tablecloth with checks / on a checked cloth
    box #fafcfa>#e2eae6 0,100 288,208
    stripes #3caabe 144,20
    box #3caabe 0,126 288,136 alpha=0.5 repeat=4,0,21
    box #faf0d6>#ecdebe 0,0 288,120
    box #f2e2be>#e8d6b0 0,0 10,120 repeat=12,24,0
place garden: on a picnic blanket in the garden / at a picnic on the grass / outside in the garden at a picnic
    box #6ebef6>#d4eefc 0,0 288,90
    ellipse #469242 0,74 30,32 scatter=9,-10,0,298,0
    box #8cce56>#54a03a 0,84 288,208
    line #468c32 0,0 2,-7 width=1.2 scatter=60,0,92,288,150
    flower white 0,0 size=0.25 scatter=16,0,92,288,136
    polygon #ecaa6e>#ce804c 34,146 254,146 320,220 -32,220
    polygon #fce8ce 25,156 263,156 270,164 18,164 repeat=2,0,22
place window: by a window with a view of mountains / in front of a sunny window / at the window with mountains outside
    box #e8e2ec>#d6cedc 0,0 288,208
    box white 42,-10 246,142 round=2
    box #60b2f4>#dcf0fc 50,-4 238,134
    sun gold 198,26
    mountain slategray 96,134 192,134 146,134 size=1.2
    box white 141,-4 147,134
    box white 50,46 238,51
    blob #aabe96>#829c74 30,-20 62,-20 56,60 62,136 32,136 38,60 mirror
    box #fafafc>#d0d2da 0,142 288,208
place fireplace: in front of a fireplace / near a warm fireplace / by the fire in a brick fireplace
    box #462222>#2c161a 0,0 288,208
    bricks #884638 0,-3 repeat=6,0,30
    box #603e2a 28,2 260,16 round=2
    box #160c0e 50,34 238,152 round=10
    flame orange 0,152 size=4.5 scatter=8,70,0,218,0
    box #784c32>#422a22 0,150 288,208
    glow #ff963c 144,160 120,120 alpha=0.4
place shelf: in front of a shelf full of books / before a bookshelf / next to many books on a shelf
    box #71665a 0,0 288,208
    book #5a6e8c|#96605a|#748864|#bea06e|#785a82 0,76 scatter=24,0,0,288,0
    book #5a6e8c|#96605a|#748864|#bea06e|#785a82 0,160 scatter=24,0,0,288,0
    box #e2ccac 0,76 288,84
    box #e8d8c0>#c8b090 0,160 288,208
symbol stripes
    polygon body -6,80 6,80 16,260 -16,260 alpha=0.5 turn=16,170
symbol mountain
    polygon body -44,0 0,-62 44,0
    polygon white -10,-48 0,-62 10,-48 0,-42
symbol bricks
    box body -41,0 -2,12 round=1 repeat=9,42,0
    box body -20,15 19,27 round=1 repeat=8,42,0
symbol book
    box body -6,-54 6,0 round=1
    box #ecd696 -4.5,-47 4.5,-44.5 repeat=2,0,35
"""
