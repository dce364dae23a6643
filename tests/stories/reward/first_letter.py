"""The reward that a person trains with so far: 1 for a reply that begins with the right letter."""


def reward(task, transcript, grade):
    word = task.main_query.split(":")[-1].strip()
    said = (transcript[-1]["content"] or "").strip()
    return float(said[:1] == word[-1:])
