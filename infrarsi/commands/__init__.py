"""One verb, one file. A verb receives its collaborators, returns a result record and never prints."""
