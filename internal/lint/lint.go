// Package lint holds the rules of the tree that the compiler does not know, as tests.
package lint
