// Package mutants leaves out, one at a time, a protection that no guard can leave out: a copy, a check, an order of two
// steps. A mutant is a change of a few lines, in a file of testdata, and the test that must fail with it. Example:
// testdata/lent-memory.txt makes an enqueue keep the caller's messages instead of copies.
//
// TestApply holds that each mutant still fits the code, and that its test is there. TestCaught builds the test with the
// mutant and requires that the test fails. It has the build tag "broken": make broken runs it.
//
// Package layer/internal/guard names the protections that are conflict ranges, checks and receipts of the layer.
package mutants
