"""What carries a collective's tensors through a group: from a call of PyTorch's to its Work.

Imported by the process group (`backend`, `collectives`) and its hook. `layout` says which calls of the
group a collective is and how its tensors lie in their arrays, `staging` copies them there and back, `reducer` keeps
order, completion and failure; start there.
"""
