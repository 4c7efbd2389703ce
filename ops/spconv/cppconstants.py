"""`spconv.cppconstants`: what a build of spconv can do."""

CPU_ONLY_BUILD = False  # the same code runs on both devices
HAS_BOOST = True  # what needs it there: the overlap of rotated boxes
