//go:build broken

package mutants

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCaught: the test of each mutant passes without the mutant and fails with it.
func TestCaught(t *testing.T) {
	whole := make(map[string]bool)
	all, err := load("testdata")
	require.NoError(t, err)
	for _, m := range all {
		if of := m.pkg + " " + m.test; !whole[of] {
			whole[of] = true
			t.Run("whole/"+m.name, func(t *testing.T) {
				t.Parallel()
				out, err := m.run(t, nil)
				require.NoError(t, err, "%s", out)
				require.Contains(t, out, "--- PASS: "+m.testFunction())
			})
		}
		t.Run("mutant/"+m.name, func(t *testing.T) {
			t.Parallel()
			texts := make(map[string]string)
			require.NoError(t, m.apply(root, texts))
			out, err := m.run(t, texts)
			require.Error(t, err, "%s %s passes with the mutant", m.pkg, m.test)
			if !strings.Contains(out, "--- FAIL") {
				require.Contains(t, out, "panic", "%s", out) // it did run
			}
		})
	}
}

// run runs the mutant's test with the texts of files replaced.
func (m *mutant) run(t *testing.T, texts map[string]string) (string, error) {
	overlay, err := writeOverlay(root, t.TempDir(), texts)
	require.NoError(t, err)
	args := []string{"test", "-vet=off", "-count", "1", "-timeout", "3m", "-v", "-overlay", overlay, "-run"}
	parts := strings.Split(m.test, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}
	args = append(args, strings.Join(parts, "/"), m.pkg)
	test := exec.Command("go", append(args, m.flags...)...)
	test.Dir = root
	out, err := test.CombinedOutput()
	return string(out), err
}
