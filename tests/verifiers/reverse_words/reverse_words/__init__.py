"""Three letters to be written backwards, as the bundled family `reverse` asks for them."""

from reverse_words.taskset import ReverseWordsTaskset

__all__ = ["ReverseWordsTaskset"]
