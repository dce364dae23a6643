"""The parts of `bench gpu`: each module measures one thing, in a process of its own."""
