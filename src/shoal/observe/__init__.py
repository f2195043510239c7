"""Views of run folders: plots, the report, the video, pages of comparisons. Nothing here trains.

This package holds `drawing` (the look of all figures), `plots` (figures from metrics), `report` (one HTML file that opens
offline), `video` (an mp4 of an episode), `comparison` (many runs side by side on one page) and figures of other results. May
import: `studies` and below; only this package imports `matplotlib` and `imageio_ffmpeg`. You may change: add a figure to `plots`
and its line to `report.SECTIONS`. Looking for the code that trains many runs? `studies`. For the code that writes the folder?
`run`.
"""
