"""What people look at: report.html, its figures and words.

Imported by compare, sweep and cli.
Start at report.py; wording.py has every sentence.
"""
