"""What the files of the ladder have in common."""

# What a constant means, in every file that has it.
LETTERS = {
    "D": "width of the head",
    "BM": "query rows of a block",
    "BN": "keys of a tile",
    "R": "query rows of a warp",
    "TM": "query rows of a thread",
    "TN": "keys of a thread",
    "TD": "output columns of a thread",
    "QS": "floats from a line of the Q tile to the next",
    "KS": "floats from a line of the K tile to the next",
    "PS": "floats from a line of the P tile to the next",
    "SLACK": "a weight may reach 2^8 before its row is rescaled",
}
