import pytest

from loadtest.sparsity.settings import StudySettings
from shared.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"budgets": ()}, "budgets are none"),
        ({"budgets": (16, 2)}, "budgets are 16, 2: a page budget is 3 pages or more"),
        ({"long_budgets": (0,)}, "long budgets are 0"),
        ({"generation_pages": -4}, "generation pages are -4"),
        ({"ablation_pages": 2}, "ablation pages are 2"),
        ({"pruned_pages": 1}, "pruned pages are 1"),
        ({"full_layers": ((0, 1), (2, 3))}, "full layers are 2,3"),
        ({"full_layers": ((0, 4, 2),)}, "full layers are 0,4,2"),
        ({"full_layers": ((),)}, "full layers are none"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
    ],
)
def test_what_a_later_part_could_not_run_with_is_refused_at_once(wrong, text):
    with pytest.raises(ConfigError, match=text):
        StudySettings(**wrong)


def test_the_smallest_budgets_pass():
    StudySettings(
        budgets=(3,), long_budgets=(3,), generation_pages=3, ablation_pages=3, pruned_pages=3,
        full_layers=((0,), (0, 2, 4)),
    )  # fmt: skip
