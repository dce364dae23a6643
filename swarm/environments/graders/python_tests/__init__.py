"""The grader python_tests: a reply is a program, the answer is test code, and both run in the sandbox.

Place in the flow: grading.py builds it from options. assertions.py takes the expected constants out of the tests.
sandboxed_tests.py runs program and tests in the sandbox, and inside.py is the script that runs there.

It withstands a program that ends early, hangs or prints. It withstands a program that replaces builtins or the modules
that the tests import, and objects that claim to equal everything. Nor can a program read the expected constants: the 4
of `assert f(2) == 4` never enters the sandbox, but the value of `f(2)` comes out and is compared here. If such an
assertion stands outside branches and loops, its value must have come out.

It has limits, because program and tests share an interpreter. A program that searches its frames or its memory finds
the inputs of the tests, and the mark that identifies their reports. With the mark it can forge every result that is
decided inside: that of an assertion without a constant, or inside a branch or loop. It can also change what the tests
use of a library, deep inside that library. It can return objects that lie about anything but equality, as in
`assert f(2) > 3`. And a program that knows the inputs can contain a table of right answers, as with any tests.
"""
