"""The study of codecs: which of them train as well as float32, at how many bits on the wire, and where each pays.

`plan` says what is trained, `training` trains one cell, `runs` all of them and goes on where it stopped, `costs` times
the codecs, `summary` puts it together, `figures` and `page` show it. `switchagg study codecs` is the command.
"""
