"""What each layer of a batch does: classes, choices, and whom a Δ-layer serves."""

from decode_service.engine.batched.layer_tasks import BatchLayers, slot_classes
from decode_service.engine.kv_cache import LengthGroup
from decode_service.sparsity.planner import layer_roles

FRONT, REST = LengthGroup.FRONT, LengthGroup.REST


def layers_of(full_layers, *layouts, whole_layers):
    return BatchLayers(
        roles=layer_roles(full_layers, num_layers=len(layouts[0])),
        classes=slot_classes(frozenset(layouts), whole_layers=whole_layers),
        whole_layers=whole_layers,
    )


def test_groups_are_classes_of_their_own_whatever_was_pruned():
    unpruned, pruned = (0,) * 6, (0, 0, 1, 1, 1, 1)
    for layouts in ({unpruned}, {pruned}, {unpruned, pruned}):
        assert slot_classes(frozenset(layouts), whole_layers=2) == (0, 0, 1, 1, 1, 1)
    assert slot_classes(frozenset({unpruned}), whole_layers=0) == (0,) * 6
    assert slot_classes(frozenset({unpruned}), whole_layers=6) == (0,) * 6


def test_layers_that_differ_in_any_row_are_classes_of_their_own():
    by_layer, other = (0, 0, 1, 2, 3, 3), (0, 0, 1, 1, 1, 2)
    assert slot_classes(frozenset({by_layer}), whole_layers=2) == (0, 0, 1, 2, 3, 3)
    assert slot_classes(frozenset({by_layer, other}), whole_layers=2) == (0, 0, 1, 2, 3, 4)


def test_a_delta_layer_serves_the_classes_up_to_the_next_one():
    layers = layers_of((0, 1, 4), (0, 0, 0, 1, 1, 1, 2), whole_layers=3)
    tasks = layers.tasks(choosing=True)
    assert [task.chooses_for for task in tasks] == [(), (0, 1), (), (), (1, 2), (), ()]
    assert [task.reads_choice for task in tasks] == [False, False, True, True, False, True, True]
    assert [task.group for task in tasks] == [FRONT] * 3 + [REST] * 4
    assert [task.slot_class for task in tasks] == [0, 0, 0, 1, 1, 1, 2]
    assert layers.mapped_classes == (1, 2)
    assert layers.sparse(FRONT) == [2]
    assert layers.sparse(REST) == [3, 5, 6]


def test_a_step_that_chooses_nothing_is_dense_in_every_layer():
    layers = layers_of((0, 1, 4), (0,) * 7, whole_layers=3)
    for task in layers.tasks(choosing=False):
        assert not task.reads_choice
        assert task.chooses_for == ()


def test_a_dense_batch_needs_no_map():
    assert layers_of(tuple(range(4)), (0, 0, 1, 1), whole_layers=2).mapped_classes == ()
