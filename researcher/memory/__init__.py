"""The memory between studies: what findings of one database say about the same question.

recipe.py says what a finding is about. standing.py finds findings on the same question and says which agree and which
contradict each other. recall.py words them for planners. prior.py sizes a study of a question that was asked before.
replication.py repeats a comparison, and settlement.py retracts a finding that a repetition contradicts.
"""
