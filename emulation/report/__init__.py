"""The report: report.html, its figures and its sentences.

Imported by experiments and cli; imports scenario, results and sim.
Start at comparison_report.py; wording.py has every sentence, page_kit.py and svg.py are what all HTML pages share.
"""
