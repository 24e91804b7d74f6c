"""Display: answers as words, tables, pictures and pages, for terminals, notebooks, papers and browsers."""
