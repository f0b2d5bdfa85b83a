"""Small helpers that know nothing of experts and boards: files, text, strict models, figures."""
