"""The IR, which back ends and the control plane read: its nodes, walks through it, the parts that can be left out.

Imported by every room but front, tree and check. Imports none.
Start in ir_nodes.py (imported as `ir`): its docstring says what holds of every program. extern_kinds.py: calls.
"""
