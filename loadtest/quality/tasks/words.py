"""Names, numbers and words that tasks hide and count; all drawn from a given generator."""

import string
import uuid
from collections.abc import Callable
from random import Random

from shared.errors import ConfigError

_ADJECTIVES = (
    "amber ancient arctic bashful bitter blazing blunt bold brave breezy brisk broad bronze "
    "calm careful cheerful chilly civil clever cloudy coastal copper cosmic crimson curious "
    "damp daring deep dense distant dreamy dusty eager early earnest elastic empty faint "
    "famous fearless fierce floral foggy forgotten fragile frosty fuzzy gentle giant gilded "
    "glassy gleaming golden graceful grand grassy gritty hardy harmless hasty hidden hollow "
    "honest humble hushed icy idle ivory jagged jolly keen kindly lanky lavish lazy leafy "
    "lively lonely loyal lucid lunar marble mellow merry mighty misty modest muddy narrow "
    "nimble noble noisy odd olive orderly pale patient peaceful placid playful polished proud "
    "quaint quiet rapid rare reckless regal restless rigid robust rocky rosy rugged rustic "
    "sandy scarlet secret serene sharp shiny silent silver sincere sleepy slender smoky snowy "
    "solemn solid spotted stable steady stormy sturdy subtle sunny swift tender thirsty "
    "thorny tidy timid tranquil tropical upright urban vast velvet vibrant violet vivid "
    "wandering weary windy winter wise witty wooden woolly young zesty"
)
_NOUNS = (
    "acorn anchor antler apron arrow badger bakery balcony banner barley basket beacon beaver "
    "bell bicycle blanket boulder bridge bucket butterfly cabin cactus camera candle canyon "
    "caravan carpet castle cavern cello cheese chimney cinder circus clover comet compass "
    "coral cottage cradle cricket crystal curtain dagger daisy desert dolphin donkey dragon "
    "drum easel elbow ember engine falcon feather fern ferry fiddle flute forest fountain fox "
    "galaxy garden garlic gate geyser glacier goblet goose granite grove guitar hammer harbor "
    "harp hatchet hazel hedge heron hill honey horizon hornet island jacket jasmine kettle "
    "kitten ladder lagoon lantern lemon library lighthouse lizard lobster locket magnet "
    "mansion maple market meadow melon mirror monkey mountain mushroom needle nest notebook "
    "oasis ocean onion orchard otter oyster paddle palace parrot peach pebble pencil pepper "
    "piano pigeon pillow pirate planet plum pocket pond prairie pumpkin puzzle quarry quilt "
    "rabbit radish raven ribbon river robin saddle sailor salmon scarf shadow shell shovel "
    "sparrow spider spoon squirrel stable station stone stove summit sunset table teapot "
    "temple thicket thimble tiger tower trumpet tulip tunnel turtle umbrella valley village "
    "violin volcano wagon walnut walrus waterfall whistle willow window"
)
ADJECTIVES = tuple(_ADJECTIVES.split())
NOUNS = tuple(_NOUNS.split())


def word_key(rng: Random) -> str:
    """An adjective and a noun, such as `misty-harbor`."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def number(rng: Random) -> str:
    """Seven digits."""
    return str(rng.randrange(1_000_000, 10_000_000))


def identifier(rng: Random) -> str:
    """A random UUID."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def variable(rng: Random) -> str:
    """Five capital letters."""
    return "".join(rng.choices(string.ascii_uppercase, k=5))


def coded_word(rng: Random) -> str:
    """Six small letters."""
    return "".join(rng.choices(string.ascii_lowercase, k=6))


def distinct(draw: Callable[[Random], str], count: int, *, rng: Random) -> list[str]:
    """`count` different draws, in the order drawn; a longer list begins with the shorter one.

    Raises:
        ConfigError: the source has not that many.
    """
    found: dict[str, None] = {}
    for _ in range(20 * count + 1000):
        if len(found) == count:
            return list(found)
        found.setdefault(draw(rng))
    raise ConfigError(
        f"the task needs {count} different words or names and its source has fewer: ask for "
        "shorter prompts"
    )
