"""Who looks at run folders: statistics of returns, plots, the report, the video, comparisons. Nothing here trains itself.

Here live `statistics`, `plots` (figures from metrics), `report` (one HTML file that opens offline), `video` (an mp4 of an
episode), and `compare`, which has a grid of trainings run as commands and puts them side by side. May import: `launch` and
below; `matplotlib`, `imageio_ffmpeg` and `scipy` live here alone. You may change: add a figure to `plots` and its line to
`report.SECTIONS`. Looking for who writes the folder? `run`.
"""
