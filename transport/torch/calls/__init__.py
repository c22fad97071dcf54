"""The path of a collective's tensors through a group: from a call of PyTorch's to its Work.

Imported by the process group (`backend`, `collectives`) and its hook. `tensor_layout` says which calls of the group a
collective is and how its tensors lie in their arrays, `tensor_staging` copies them there and back, `reducer` keeps
order, completion and failure; start there.
"""
