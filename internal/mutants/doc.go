// Package mutants leaves out, one at a time, a protection that no conflict range carries: a copy, a check, an order of
// two steps. So the code of the product has no switch for tests. A mutant is a change of a few lines, in a file of
// testdata. There are two kinds.
//
// A mutant in testdata also names the test that must fail with it. Example: testdata/lent-message.txt makes an enqueue
// keep the caller's messages instead of copies. TestCaught builds the test with the mutant and requires that the test
// fails.
//
// A mutant in testdata/guards has the name of a guard of package layer/internal/guard that is a check. Example:
// testdata/guards/token.txt. Its new lines leave the check out if layer.Lacks reports the guard as left out. One build
// has all these mutants, because tests and the simulation run it for every guard. Overlay writes the files of that
// build, which replace files of the tree by the flag -overlay of the go command.
//
// TestApply and TestGuards hold that each mutant still fits the code. TestCaught has the build tag broken: make broken
// runs it.
package mutants
