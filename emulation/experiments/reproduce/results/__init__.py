"""Published results, a module each, in a folder for each subject: the paper's numbers, and how we get ours.

Found by `emulation.experiments.reproduce.catalogue`, which nothing but the command imports. Start with
`codecs/dgc.py`, which counts bytes, or `schedules/mgwfbp.py`, which calibrates.
"""
