"""Who runs when, so that no arm of a bench always comes after the same other one."""


def balanced_turns(count: int) -> list[list[int]]:
    """Orders of `count` arms in which each comes directly after every other equally often.

    A device at its power limit is slower right after one arm than after another, or after a pause;
    arms that only rotate would keep their neighbours. These are the rows of a Latin square balanced
    for first-order carry-over (Williams 1949): as many as arms, or twice as many for an odd number.
    """
    zigzag = [index // 2 + 1 if index % 2 else -(index // 2) for index in range(count)]
    rows = [[(row + step) % count for step in zigzag] for row in range(count)]
    return rows if count % 2 == 0 else rows + [row[::-1] for row in rows]
