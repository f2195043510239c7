"""Looks at run folders and never trains: plots, the report, the video, pages of comparisons.

Here live `plots` (figures from metrics), `report` (one HTML file that opens offline), `video` (an mp4 of an
episode) and `comparison` (many runs side by side on one page). May import: `studies` and
below; `matplotlib` and `imageio_ffmpeg` live here alone. You may change: add a figure to `plots` and its line to
`report.SECTIONS`. Looking for what runs many runs? `studies`. For who writes the folder? `run`.
"""
