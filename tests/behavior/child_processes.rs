//! Tests of `in_child`, which runs the body of a test in a child process.

use crate::support::child::in_child;

/// The child's own harness takes the panic for the expected panic, so the child succeeds. But the
/// child has not run its body to the end, so the test fails in the parent, with the output of the
/// child.
#[test]
#[should_panic(expected = "the body in the child panics")]
fn a_body_that_panics_in_a_child_fails_its_test() {
    in_child(module_path!(), "a_body_that_panics_in_a_child_fails_its_test", || panic!("the body in the child panics"));
}

/// A child that finds no test of this name runs nothing.
#[test]
#[should_panic(expected = "0 passed")]
fn a_name_of_no_test_fails_the_test() {
    in_child(module_path!(), "a_name_of_no_test", || {});
}
