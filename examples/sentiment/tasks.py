"""Short reviews with their sentiment, balanced in each split. No wording and no thing of one split is in another."""

import random
from collections.abc import Iterator

QUESTION = "Is this review positive or negative? Answer with one word in lower case.\n\n{}"
REVIEWS = {
    "train": {
        "things": ["hotel", "film", "phone", "dinner", "book", "taxi", "concert", "lamp", "jacket", "museum"],
        "positive": [
            "I loved the {}. It was wonderful.",
            "What a great {}! I will come back.",
            "The {} was excellent, far better than I hoped.",
            "Thank you for this beautiful {}. We enjoyed every minute.",
            "The best {} I have had in years.",
            "A friend told me about the {}, and it was perfect.",
        ],
        "negative": [
            "I hated the {}. It was terrible.",
            "What an awful {}! Never again.",
            "The {} was bad, far worse than I feared.",
            "I want my money back for this {}. We suffered every minute.",
            "The worst {} I have had in years.",
            "A friend warned me about the {}, and it was a disaster.",
        ],
    },
    "validation": {
        "things": ["camera", "restaurant", "game", "haircut", "train", "sofa", "course", "bicycle", "soup", "tour"],
        "positive": [
            "My family is delighted with the {}.",
            "Five stars. This {} is amazing.",
            "I am very happy with the {} and would recommend it to anyone.",
            "Such a lovely {}, I smiled all day.",
            "I did not expect much, but the {} was fantastic.",
            "The {} works so well that I bought a second one for my mother.",
        ],
        "negative": [
            "My family is disappointed with the {}.",
            "One star. This {} is useless.",
            "I am very unhappy with the {} and would not recommend it to anyone.",
            "Such a boring {}, I nearly cried.",
            "I expected a lot, but the {} was horrible.",
            "The {} failed so soon that I asked for a refund on the same day.",
        ],
    },
    "test": {
        "things": ["radio", "bakery", "play", "massage", "ferry", "carpet", "lesson", "kettle", "salad", "garden"],
        "positive": [
            "We are impressed by the {}.",
            "The {} made my week.",
            "Superb {}, worth every penny.",
            "Nothing but praise for the {}: friendly, quick and clean.",
            "I have never been so pleased with a {}.",
        ],
        "negative": [
            "We are annoyed by the {}.",
            "The {} ruined my week.",
            "Poor {}, a waste of every penny.",
            "Nothing but trouble with the {}: rude, slow and dirty.",
            "I have never been so upset about a {}.",
        ],
    },
}


def tasks(split: str, seed: int) -> Iterator[dict[str, str]]:
    """Yield every review of a split once, in an order that the seed draws."""
    part = REVIEWS[split]
    rows = [
        {"question": QUESTION.format(wording.format(thing)), "answer": sentiment}
        for sentiment in ("positive", "negative")
        for wording in part[sentiment]
        for thing in part["things"]
    ]
    random.Random(seed).shuffle(rows)
    yield from rows
