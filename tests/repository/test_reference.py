"""The generated pages of docs/reference are what the code says."""

import pytest

from switchagg.native.library import missing
from tools.documents.reference import FOLDER, PAGES

MEASURED = {"backend"}
"""Pages that take half a minute to make: tests/transport/torch/test_feature_matrix.py compares that."""


@pytest.mark.skipif(bool(missing()), reason=f"pages say what is in the compiled core: {missing()}")
@pytest.mark.parametrize("name", sorted(PAGES.keys() - MEASURED))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    written = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert written == PAGES[name](), f"run: python -m tools.documents.reference {name}"
