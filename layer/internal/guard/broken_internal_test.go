//go:build broken

package guard

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestListIsWhole: the list of the broken build has all guards of guard.go, in the same order.
func TestListIsWhole(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "guard.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var want []Guard
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, v := range spec.Values {
				name, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				require.NoError(t, err)
				want = append(want, Guard(name))
			}
		}
		return true
	})
	require.Equal(t, want, All())
}

// TestLeftOut: without its guard no method adds a conflict. The other guards still add theirs.
func TestLeftOut(t *testing.T) {
	before := leftOut
	defer func() { leftOut = before }()
	leftOut = Token
	for name, p := range pairs {
		require.False(t, p.conflicts(t, Token), name)
		require.True(t, p.conflicts(t, Tail), name)
	}
}
