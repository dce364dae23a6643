def measure_pages(*, is_full):
    return []
