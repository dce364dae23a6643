"""The grader python_tests: a reply is a program, the answer is test code, and both run in the sandbox."""
