"""How many GPUs a load needs, and how to split them: discrete events over measured times."""
