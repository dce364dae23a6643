"""The grader python_tests: a reply is a program, the answer is test code, both run where neither can do harm.

Place in the flow: grading.py builds it from options. assertions.py takes out of the tests what they expect,
sandboxed_tests.py runs program and tests in the sandbox, inside.py is what runs there.

What it withstands: a program that ends early, hangs or prints; one that puts something else in the place of builtins or
of what the tests import; objects that claim to be equal to everything; and a look at the tests, since a constant that
something must equal (`assert f(2) == 4`) never enters the sandbox: the value comes out and is compared here. If such an
assertion stands outside of branches and loops, the value must have come out.

What remains possible: program and tests share an interpreter. A program that walks through its frames or its memory
finds the inputs of the tests and the mark by which their reports are known. With that it can claim what is found out
inside: assertions that are no comparison with a constant, and those in branches and loops. It can also change, deep
inside a library, what the tests use of it, and return objects that lie when they are asked for anything but equality
(`assert f(2) > 3`). And whoever knows the inputs of a test can have a table of right answers, as with any tests.
"""
