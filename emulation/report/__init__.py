"""The report: report.html, its figures and its sentences.

Imported by compare, sweep and cli.
Start at report.py; wording.py has every sentence, page.py and svg.py are what all HTML pages share.
"""
