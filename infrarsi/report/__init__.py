"""One result, several readers: terminal, JSON, markdown, HTML, and a live view. Readers draw; they measure nothing.

A reader returns text or draws on a rich `Console` that it is given. Everything that a repository, a patch or a training
process wrote is untrusted here and goes through `text.clean` and the reader's own escaping.
"""
