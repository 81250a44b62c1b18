import pytest

import anytime


@pytest.fixture(scope="session")
def data():
    return anytime.load_data("digits").subset(100)
