"""The study of codecs: which of them train as well as float32, at how many bits on the wire, and where each pays.

`study_plan` says what is trained, `codec_training` trains one cell, `study_request` all of them, `costs` times the
codecs, `summary` puts it together, `study_figures` and `study_page` show it. `switchagg study accuracy` is the command.
"""
