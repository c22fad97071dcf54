"""Array codecs whose words don't add: what each rank chose is gathered, and every rank sums it, in the order of ranks,
so all have the same bits. Start at topk.py; `choosing` finds the greatest values, `packing` writes which they are.

Non-finite values reach every rank: they count as the greatest. Residuals are exact: what is sent in full leaves 0.
"""
